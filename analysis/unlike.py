"""In what the machines, versions and server settings of records differ that stand in one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from analysis.study import Cell
from harness.printable import setting_words

_MACHINE = ("cpu", "cores", "gpus", "driver", "versions.sglang", "versions.torch")
# Those that change a decode step. Pools and prefill chunks may differ between experiments of one study.
_SETTINGS = ("hardware.target_backend", "hardware.threads", "hardware.server_arguments",
             "model.server_arguments", "model.yarn_factor", "server.kind", "server.extra_arguments",
             "server.image", "the draft head's digest")  # fmt: skip


def unlike(cells: Iterable[Cell]) -> str:
    """As `cpu A / B; hardware.threads 1 / 2`; empty where they are alike.

    What one of them does not tell differs from nothing.
    """
    cells = list(cells)
    parts = []
    for name in _MACHINE:
        found = {_fact(cell.record.environment, name) for cell in cells} - {""}
        if len(found) > 1:
            parts.append(f"{name.removeprefix('versions.')} {' / '.join(sorted(found))}")
    for name in _SETTINGS:
        kept = [cell.record.server.settings for cell in cells if name in cell.record.server.settings]
        values = {setting_words(settings[name]) for settings in kept}
        if len(values) > 1:
            parts.append(f"{name} {' / '.join(sorted(values))}")
    return "; ".join(parts)


def _fact(environment: object, name: str) -> str:
    value = environment
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, list):  # the GPUs
        value = ", ".join(str(gpu.get("name", gpu)) if isinstance(gpu, dict) else str(gpu) for gpu in value)
    return "" if value is None else str(value)
