"""The attention-mass probe's lines of one run as `record.extras["attention_mass"]`: means over everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from harness.errors import RecordError
from harness.measure.decision import refuse_errors
from harness.measure.probes import Line
from harness.points import Point

MAX_KERNEL_DIFFERENCE = 0.1
"""Mean |o - o'| / |o| above which the read-out is not the attention kernel's: wrong keys were read. The tiny
model in bfloat16 leaves 0.002."""

_WINDOW_MEANS = (
    "mass", "perturbation", "perturbation_joint", "tail_share", "tail_share_joint", "tail_keys",
    "tail_entropy_nats", "tail_participation_keys",
)  # fmt: skip


def summarise(lines: Sequence[Line], point: Point) -> dict[str, Any]:
    """Means over the run's draft forwards, requests and layers (a head counts as one in each).

    Raises:
        RecordError: the probe stopped with an error, or what it computed is not what the kernel computes.
    """
    refuse_errors(lines)
    difference = _mean(line["kernel_difference"] for line in lines)
    if difference is not None and difference > MAX_KERNEL_DIFFERENCE:
        raise RecordError(
            f"the read-out from the cached keys differs from the attention kernel's by {difference:.0%} on "
            "average: the probe does not read what this draft's attention reads"
        )
    windows = [_of_window(lines, i) for i in range(len(lines[0]["windows"]))]
    layers = len({line["layer"] for line in lines})
    operating = windows[0]
    return {
        "attention_mass": {
            "steps": len(lines) // layers,
            "layers": layers,
            "window_tokens": operating["window_tokens"],
            "sink_tokens": operating["sink_tokens"],
            "in_window_mass": operating["mass"],
            "perturbation": operating["perturbation"],
            "tail_share": operating["tail_share"],
            "residual_share": _mean(line["residual_share"] for line in lines),
            "kernel_difference": difference,
            "windows": windows,
            "sink_mass": _mean(line["sink_mass"] for line in lines),
            "distance_mass": _by_distance([line["distance_mass"] for line in lines]),
        }
    }


def _of_window(lines: Sequence[Line], index: int) -> dict[str, Any]:
    found = [line["windows"][index] for line in lines]
    means: dict[str, Any] = {name: _mean(one[name] for one in found) for name in _WINDOW_MEANS}
    return {"window_tokens": found[0]["window_tokens"], "sink_tokens": found[0]["sink_tokens"], **means}


def _by_distance(rows: Sequence[Sequence[float]]) -> list[float]:
    """Mean of each distance bin; a step whose context does not reach a bin has no mass there."""
    longest = max(len(row) for row in rows)
    return [fmean(row[i] if i < len(row) else 0.0 for row in rows) for i in range(longest)]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
