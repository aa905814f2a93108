"""Table 7 from the trace that the server wrote: mean time of each phase of a steady decode iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from harness.errors import RecordError
from harness.phases import DRAFT, INDEX_BUILDS, OVERHEAD, UNATTRIBUTED, VERIFY, base_part, phase_of
from harness.points import Point

_SKIPPED = 2
_MIN_AT_BATCH = 5
_KEEP_FROM, _KEEP_TO = 0.4, 2.5
SCHEDULER = "scheduler"
"""Name of the time between two iterations of the worker."""


@dataclass(frozen=True)
class Iteration:
    """One iteration: its time until the next one began, and the time of each part, in nanoseconds."""

    iteration_ns: int
    parts_ns: Mapping[str, int]
    accepted: Sequence[int]
    context_tokens: int | None


def summarise(lines: Sequence[Mapping[str, Any]], point: Point) -> dict[str, Any]:
    """The `phases` entry of `record.extras`.

    Means over the steady iterations: those at the asked batch (or the largest that ran five times), less the
    first two, kept between 0.4 and 2.5 times their median, as for the step time.

    Raises:
        RecordError: no steady iteration among the lines, or a line of another shape.
    """
    try:
        kept = steady(lines, point.batch)
        sources = sorted({str(line["source"]) for line in lines})
    except (KeyError, TypeError) as error:
        raise RecordError(f"a line of the trace has another shape ({error}): measure it again") from error
    if not kept:
        raise RecordError(f"the trace holds no steady decode iteration ({len(lines)} lines)")
    parts = _mean_parts(kept)
    phases = dict.fromkeys((VERIFY, OVERHEAD, DRAFT), 0.0)
    for name, value in parts.items():
        phase = phase_of(name)
        if phase != UNATTRIBUTED:
            phases[phase] += value
    iteration_ms = fmean(one.iteration_ns for one in kept) / 1e6
    contexts = [one.context_tokens for one in kept if one.context_tokens is not None]
    accepted = [count for one in kept for count in one.accepted]
    return {
        "phases": {
            "source": "engine",
            "clock": "+".join(sources),
            "iterations": len(kept),
            "verify_base_ms": phases[VERIFY],
            "verify_overhead_ms": phases[OVERHEAD],
            "draft_ms": phases[DRAFT],
            "draft_extend_ms": sum(v for k, v in parts.items() if k.startswith("draft_extend")),
            "draft_index_ms": sum(parts.get(name, 0.0) for name in INDEX_BUILDS),
            "draft_forward_ms": _forwards(parts),
            "unattributed_ms": iteration_ms - sum(phases.values()),
            "iteration_ms": iteration_ms,
            "parts_ms": parts,
            "accepted_mean": fmean(accepted) if accepted else None,
            "context_tokens_mean": fmean(contexts) if contexts else None,
        }
    }


def steady(lines: Sequence[Mapping[str, Any]], batch: int) -> list[Iteration]:
    """The iterations that count, in order; an iteration without a direct successor has no length."""
    counts: dict[int, int] = {}
    for line in lines:
        counts[line["batch"]] = counts.get(line["batch"], 0) + 1
    enough = [size for size, count in counts.items() if count >= _MIN_AT_BATCH and size <= batch]
    size = batch if batch in enough else max(enough, default=batch)
    found = []
    for line, following in pairwise(lines):
        follows = following["step"] == line["step"] + 1 and following["since_previous_ns"] is not None
        if line["batch"] == size and follows:
            found.append(_iteration(line, following["since_previous_ns"]))
    found = found[_SKIPPED:]
    if not found:
        return []
    middle = median(one.iteration_ns for one in found)
    return [one for one in found if _KEEP_FROM * middle <= one.iteration_ns <= _KEEP_TO * middle]


def _iteration(line: Mapping[str, Any], length_ns: int) -> Iteration:
    parts = {name: int(value) for name, value in line["parts_ns"].items()}
    parts[SCHEDULER] = length_ns - int(line["worker_ns"])
    return Iteration(length_ns, parts, line.get("accepted", ()), line.get("context_tokens"))


def _mean_parts(kept: Sequence[Iteration]) -> dict[str, float]:
    """Milliseconds of each part an iteration; one that an iteration lacks took none of its time."""
    names = sorted({name for one in kept for name in one.parts_ns})
    return {name: fmean(one.parts_ns.get(name, 0) for one in kept) / 1e6 for name in names}


def _forwards(parts: Mapping[str, float]) -> list[float]:
    """Milliseconds of each draft decode forward, in order; a single one where a CUDA graph holds them all."""
    own = [name for name in parts if base_part(name) == "draft_forward"]
    return [parts[name] for name in sorted(own, key=lambda name: int(name.partition(".")[2] or 0))]
