"""Settings that change a measurement and that no point names.

Points are hashed into the keys of records that exist, so these cannot join them. A record keeps them instead:
a plan tells a record made with others, and a sweep over them is refused, as its points would be one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.compose import Cell
from harness.errors import HarnessError
from harness.measure.origins import origins_of
from harness.points import SPECULATIVE_ARMS, Point
from harness.printable import setting_words
from harness.server.containers import KINDS
from harness.server.spec import ServerSpec

DRAFT_HEAD = "the draft head's digest"
# Of a text, which two numbers of this length would say nothing about.
_DIGEST = re.compile(r"[0-9a-f]{64}")


def of_cell(cell: Cell) -> dict[str, Any]:
    """The settings of a cell's server by name; of a server that runs already, nothing but that it did.

    None of them can hold a secret: `harness.server.arguments` refuses those before.
    """
    config = cell.config
    model, hardware, server = config.model, config.hardware, config.server
    if server.kind == "url":
        return {"server.kind": "url"}
    settings: dict[str, Any] = {
        "hardware.target_backend": hardware.target_backend,
        "hardware.server_arguments": list(hardware.server_arguments),
        "model.server_arguments": list(model.server_arguments),
        "model.yarn_factor": model.yarn_factor,
        "server.kind": server.kind,
        "server.python": server.python,
        "server.extra_arguments": list(server.extra_arguments),
        "server.chunked_prefill_tokens": server.chunked_prefill_tokens,
        "server.max_total_tokens": server.max_total_tokens,
        "server.mem_fraction_static": server.mem_fraction_static,
    }
    if hardware.device == "cpu":
        settings["hardware.threads"] = hardware.threads
    else:
        settings["hardware.mem_fraction_static"] = hardware.mem_fraction_static
        settings["hardware.mem_fraction_static_batch"] = hardware.mem_fraction_static_batch
    if server.kind in KINDS:
        settings["server.image"] = server.image
        settings["server.mounts"] = list(server.mounts)
        settings["server.container_arguments"] = list(server.container_arguments)
    # The checkpoint's fingerprint samples its files: another training of a small head would pass.
    if config.arm in SPECULATIVE_ARMS and cell.checkpoint is not None and cell.checkpoint.draft_head:
        settings[DRAFT_HEAD] = cell.checkpoint.draft_head
    return settings


class PromptOrigins:
    """What the prompts of points are made from here; each is looked up once."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def beside(self, spec: ServerSpec, point: Point, tokenizer: str) -> ServerSpec:
        """The spec with what the point's prompt is made from among its settings, as far as that is here.

        Args:
            tokenizer: folder of the checkpoint's tokenizer.
        """
        key = repr((point.task, sorted(point.task_params.items()), tokenizer))
        if key not in self._known:
            self._known[key] = {}
            if Path(tokenizer).exists():  # else it would be asked of the Hub
                with suppress(HarnessError, OSError, ValueError):
                    self._known[key] = origins_of(point.task, point.task_params, Path(tokenizer))
        return replace(spec, settings={**spec.settings, **self._known[key]})


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How settings differ, as a phrase; what only one of them names is unknown and differs from nothing."""
    return ", ".join(
        _change(name, before[name], value)
        for name, value in now.items()
        if name in before and before[name] != value
    )


def _change(name: str, before: Any, now: Any) -> str:
    if _DIGEST.fullmatch(str(before)) and _DIGEST.fullmatch(str(now)):
        return f"{name} changed"
    return f"{name} was {setting_words(before)}, is {setting_words(now)}"
