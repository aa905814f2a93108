"""The decision probe's lines of one run as `record.extras["decision_probe"]`: counts, means, a histogram."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from harness.errors import RecordError
from harness.measure.probes import Line
from harness.points import Point

MARGIN_EDGES_LOGITS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Lower ends of the histogram's bins; the last one is open."""


def summarise(lines: Sequence[Line], point: Point) -> dict[str, Any]:
    """What the run's draft forwards decided; a step is one forward's proposal for one request.

    Raises:
        RecordError: the probe stopped with an error.
    """
    refuse_errors(lines)
    windows = [_of_window(lines, i) for i in range(len(lines[0]["windows"]))]
    operating = windows[0]
    flips = [line["margin"] for line in lines if not line["windows"][0]["agrees"]]
    positions = sorted({line["draft_position"] for line in lines})
    return {
        "decision_probe": {
            "steps": len(lines),
            **operating,
            "margin_mean": fmean(line["margin"] for line in lines),
            "control_agreeing_steps": sum(line["control"]["agrees"] for line in lines),
            "windows": windows,
            "by_position": [_at_position(lines, position) for position in positions],
            "margin_edges_logits": list(MARGIN_EDGES_LOGITS),
            "margin_counts": _histogram([line["margin"] for line in lines]),
            "margin_counts_at_flip": _histogram(flips),
        }
    }


def refuse_errors(lines: Sequence[Line]) -> None:
    """Raise RecordError where a probe inside the server stopped with an error."""
    for line in lines:
        if "error" in line:
            raise RecordError(f"the server's probe stopped: {line['error']}; its log has the traceback")


def _of_window(lines: Sequence[Line], index: int) -> dict[str, Any]:
    found = [line["windows"][index] for line in lines]
    flips = [line["margin"] for line, one in zip(lines, found, strict=True) if not one["agrees"]]
    overlaps = [one["router_overlap"] for one in found if one["router_overlap"] is not None]
    return {
        "window_tokens": found[0]["window_tokens"],
        "sink_tokens": found[0]["sink_tokens"],
        "agreeing_steps": sum(one["agrees"] for one in found),
        "margin_at_flip": fmean(flips) if flips else None,
        "router_jaccard": fmean(overlaps) if overlaps else None,
    }


def _at_position(lines: Sequence[Line], position: int) -> dict[str, int]:
    found = [line["windows"][0]["agrees"] for line in lines if line["draft_position"] == position]
    return {"position": position, "steps": len(found), "agreeing_steps": sum(found)}


def _histogram(values: Sequence[float]) -> list[int]:
    counts = [0] * len(MARGIN_EDGES_LOGITS)
    for value in values:
        counts[max(bisect_right(MARGIN_EDGES_LOGITS, value) - 1, 0)] += 1
    return counts
