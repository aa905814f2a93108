"""What a run will cost: from stored records where there are any, else from stated assumptions.

A record made on a busy machine makes later estimates longer, as the same machine may be busy again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from harness.measure import draws
from harness.points import Point
from harness.records import Outcome, Record


@dataclass(frozen=True)
class Assumption:
    """Used where no record tells better; rough, and always shown as an assumption.

    Attributes:
        startup_s: from the start of a server to its first request.
        prefill_tokens_per_s: over the whole prompt, its building and the warm-up included.
        tpot_ms: time per output token of one sequence.
    """

    startup_s: float
    prefill_tokens_per_s: float
    tpot_ms: float


GPU_ASSUMPTION = Assumption(startup_s=300.0, prefill_tokens_per_s=10_000.0, tpot_ms=10.0)
# The shipped model on two idle cores.
CPU_ASSUMPTION = Assumption(startup_s=30.0, prefill_tokens_per_s=3_000.0, tpot_ms=30.0)


@dataclass(frozen=True)
class _Seen:
    point: Point
    prefill_tokens_per_s: float
    tpot_ms: float
    startup_s: float | None
    written: float  # share of the tokens that it might write and did


@dataclass
class History:
    """Rates measured before, by model and hardware."""

    _seen: dict[tuple[str, str], list[_Seen]] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[Record]) -> History:
        """Rates of every finished record that tells its prefill and decode apart."""
        history = cls()
        for record in records:
            seen = _rates(record)
            if seen is not None:
                history._seen.setdefault((record.point.model, record.point.hardware), []).append(seen)
        return history

    def startup_s(self, point: Point) -> tuple[float, bool]:
        """Seconds until a server is ready, and whether that was measured."""
        known = [s.startup_s for s in self._known(point) if s.startup_s is not None]
        return (median(known), True) if known else (_assumption(point).startup_s, False)

    def run_s(self, point: Point, prefill_tokens: int) -> tuple[float, bool]:
        """Seconds of one timed run after the start, and whether its rates were measured.

        The rates are those of the nearest record: the same arm and depth where possible, then the nearest
        context length.
        """
        known = self._known(point)
        rates = min(known, key=lambda seen: _distance(seen.point, point)) if known else _assumption(point)
        new_tokens = point.max_new_tokens * self._written(point)
        if point.probe == "draws":
            new_tokens += draws.DRAWS / point.batch * draws.TOKENS
        prefill_s = prefill_tokens / rates.prefill_tokens_per_s
        return prefill_s + new_tokens * rates.tpot_ms / 1000, bool(known)

    def _written(self, point: Point) -> float:
        """The share of `max_new_tokens` that outputs of a task had in the end; 1 where none is known."""
        alike = [s.written for s in self._known(point) if s.point.task == point.task]
        return 1.0 if point.ignore_eos or not alike else median(alike)

    def _known(self, point: Point) -> list[_Seen]:
        return self._seen.get((point.model, point.hardware), [])


def _assumption(point: Point) -> Assumption:
    return CPU_ASSUMPTION if point.hardware == "cpu" else GPU_ASSUMPTION


def assumed(point: Point) -> str:
    """What is taken for a point where no record tells, as a phrase."""
    rates = _assumption(point)
    return (
        f"{rates.startup_s:.0f} s a server start, {rates.prefill_tokens_per_s:,.0f} tokens/s of prefill and "
        f"{rates.tpot_ms:.0f} ms an output token, on an idle {'CPU' if point.hardware == 'cpu' else 'GPU'}"
    )


def _distance(seen: Point, wanted: Point) -> tuple[float, ...]:
    return (
        float(seen.arm != wanted.arm),
        abs(math.log(seen.context_tokens / wanted.context_tokens)),
        float(seen.tp != wanted.tp),
        float(abs(seen.depth - wanted.depth)),
        float(abs(seen.batch - wanted.batch)),
    )


def _rates(record: Record) -> _Seen | None:
    if record.outcome is not Outcome.OK or not record.requests or record.source != "measured":
        return None
    if record.point.shared_prefill:
        return None  # its steps are only a part of the run
    steps = record.decode_steps
    each_s = [
        running * (length or 1.0) / rate
        for running, length, rate in zip(
            steps.running_requests, steps.accept_length, steps.throughput_tokens_per_s, strict=True
        )
        if rate > 0
    ]
    # A step's rate covers the time since the line before it: the first holds the prefill, and with a batch
    # others hold that of the next prompt.
    decode_s = median(each_s) * len(each_s) if each_s else 0.0
    run_s = record.duration_s or 0.0
    prompt_tokens = sum(request.prompt_tokens for request in record.requests)
    new_tokens = max(request.completion_tokens for request in record.requests)
    if new_tokens < 2 or not 0 < decode_s < run_s:
        return None
    return _Seen(
        point=record.point,
        prefill_tokens_per_s=prompt_tokens / (run_s - decode_s),
        tpot_ms=decode_s * 1000 / new_tokens,
        startup_s=record.server.startup_s,
        written=min(1.0, new_tokens / record.point.max_new_tokens),
    )
