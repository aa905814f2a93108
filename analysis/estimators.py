"""Step time, acceptance length and time per output token from stored decode steps.

Source: section "Measurement protocol" of the paper's appendix A. Per decode line i, throughput X_i (tokens/s
over the batch) and accept length AL_i give the wall time of one speculative iteration T_i = B_eff AL_i / X_i,
in which acceptance cancels. TPOT is median(T_i) / mean(AL_i); never B / median(X), which is biased because
AL_i is an integer on every line of a single request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.records import DecodeSteps, Record, RequestResult

Floats = npt.NDArray[np.float64]

MIN_LINES = 5
SKIPPED_LINES = 2
BAND = (0.4, 2.5)
RATES = (1e-9, 1e12)
"""Tokens/s that a decode line may state; beyond them an inverse, or a product with one, is no number."""
LENGTHS = (1e-3, 1e3)
"""Accept lengths that are computed with, for the same reason; what is possible is the verdict's business."""
_RESAMPLES = 1000
_BLOCK_STEPS = 8
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; `n` says how many steps, requests or trials it rests on.

    `low`/`high` are NaN where too little was measured to claim an interval.
    """

    value: float
    low: float = float("nan")
    high: float = float("nan")
    n: int = 0

    @property
    def known(self) -> bool:
        """Whether there is a value at all."""
        return bool(np.isfinite(self.value))

    def scaled(self, factor: float) -> Estimate:
        """The same in another unit."""
        return Estimate(factor * self.value, factor * self.low, factor * self.high, self.n)

    def ratio_to(self, other: Estimate) -> Estimate:
        """self / other, the interval by first-order error propagation on the logarithms."""
        if not (self.value > 0 and other.value > 0):
            return Estimate(float("nan"), n=min(self.n, other.n))
        ratio = self.value / other.value
        spread = float(np.hypot(self._log_half_width(), other._log_half_width()))
        return Estimate(ratio, ratio * np.exp(-spread), ratio * np.exp(spread), min(self.n, other.n))

    def _log_half_width(self) -> float:
        if not (self.low > 0 and self.high > 0):
            return float("nan")
        return float(np.log(self.high / self.low) / 2)


@dataclass(frozen=True)
class StepStatistics:
    """Steady-state figures of one record.

    Attributes:
        batch: B_eff, requests running together on the steady lines.
        steady_steps: lines used after the band of 0.4 to 2.5 medians.
        step_ms: T_iter, the median iteration.
        accept_length: mean AL over the same lines (1 for the dense arm).
        tpot_ms: T_iter / AL, for one sequence.
    """

    batch: int
    steady_steps: int
    step_ms: Estimate
    accept_length: Estimate
    tpot_ms: Estimate

    def tokens_per_s_per_user(self) -> float:
        """1000 / TPOT."""
        return 1000 / self.tpot_ms.value if self.tpot_ms.value else float("nan")

    def tokens_per_s_per_gpu(self, gpus: int) -> float:
        """B_eff x 1000 / TPOT / GPUs."""
        return self.batch * self.tokens_per_s_per_user() / max(gpus, 1)


def effective_batch(running: npt.NDArray[np.int64], requested: int) -> int | None:
    """The requested batch where at least 5 lines ran at it, else the largest concurrency with 5 lines."""
    sizes, counts = np.unique(running, return_counts=True)
    enough = {int(s) for s, c in zip(sizes, counts, strict=True) if c >= MIN_LINES and s > 0}
    if requested in enough:
        return requested
    return max(enough, default=None)


def steady_steps(steps: DecodeSteps, requested_batch: int) -> tuple[int, Floats, Floats] | None:
    """(B_eff, T_i in ms, AL_i) of the steady lines, or None where fewer than 5 lines ran together.

    Steady: at B_eff, less the first two (the first one's gap holds the prefill), less lines without resident
    tokens (the pool is already freed: their throughput is an artefact) or with a throughput that is none, and
    within 0.4 to 2.5 times the median.
    """
    running = np.asarray(steps.running_requests, dtype=np.int64)
    batch = effective_batch(running, requested_batch)
    if batch is None:
        return None
    throughput = np.asarray(steps.throughput_tokens_per_s, dtype=np.float64)
    length = np.asarray([1.0 if a is None else a for a in steps.accept_length], dtype=np.float64)
    resident = np.asarray([1 if r is None else r for r in steps.resident_tokens], dtype=np.int64)
    at_batch = np.flatnonzero(running == batch)[SKIPPED_LINES:]
    usable = (resident > 0) & within(throughput, RATES) & within(length, LENGTHS)
    kept = at_batch[usable[at_batch]]
    if kept.size == 0:
        return None
    times = batch * length[kept] / throughput[kept] * 1000
    middle = np.median(times)
    inside = (times >= BAND[0] * middle) & (times <= BAND[1] * middle)
    return batch, times[inside], length[kept][inside]


def within(values: Floats, bounds: tuple[float, float]) -> npt.NDArray[np.bool_]:
    """Which values lie within bounds; NaN does not."""
    return (values >= bounds[0]) & (values <= bounds[1])


def step_statistics(record: Record) -> StepStatistics | None:
    """Steady-state figures of a record, or None where it has no steady state.

    Intervals: moving-block bootstrap over steps (blocks of 8, since neighbouring steps are correlated),
    seeded, 1000 resamples, percentile 95 %. They cover the spread within the run, not between runs.
    """
    found = steady_steps(record.decode_steps, record.point.batch)
    if found is None:
        return None
    batch, times, lengths = found
    step, length = float(np.median(times)), float(np.mean(lengths))
    draws = _blocks(times.size)
    if draws is None:
        return StepStatistics(
            batch, times.size, Estimate(step, n=times.size), Estimate(length, n=times.size),
            Estimate(step / length, n=times.size),
        )  # fmt: skip
    steps, means = np.median(times[draws], axis=1), np.mean(lengths[draws], axis=1)
    return StepStatistics(
        batch,
        int(times.size),
        _with_interval(step, steps, times.size),
        _with_interval(length, means, times.size),
        _with_interval(step / length, steps / means, times.size),
    )


def _blocks(n: int) -> npt.NDArray[np.int64] | None:
    """[resamples, n] step indices of a moving-block bootstrap; None below 10 steps."""
    if n < 10:
        return None
    block = min(_BLOCK_STEPS, n // 2)
    rng = np.random.Generator(np.random.PCG64(n))
    starts = rng.integers(0, n - block + 1, size=(_RESAMPLES, -(-n // block)))
    return (starts[:, :, None] + np.arange(block)).reshape(_RESAMPLES, -1)[:, :n]


def _with_interval(value: float, draws: Floats, n: int) -> Estimate:
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    # Blocks reach the first and last steps less often: with few, uneven steps the value may lie outside.
    return Estimate(value, min(value, float(low)), max(value, float(high)), n)


# -- acceptance length from replies ----------------------------------------------------------------------


def histogram_length(histogram: list[int]) -> float:
    """AL = 1 + sum_n n H[n] / sum_n H[n]; NaN for an empty histogram."""
    steps = sum(histogram)
    return 1 + sum(n * count for n, count in enumerate(histogram)) / steps if steps else float("nan")


def reply_length(request: RequestResult) -> float:
    """(completion - 1) / verify: the first token comes from the prefill. NaN without verify steps."""
    if not request.verify_steps:
        return float("nan")
    return (request.completion_tokens - 1) / request.verify_steps


@dataclass(frozen=True)
class LengthAgreement:
    """The acceptance length by three ways that should agree.

    `log`: mean over all decode lines, first and last included; `histogram`: from the replies' histograms;
    `reply`: completion over verify, low by the tokens emitted past the end.
    """

    log: float
    histogram: float
    reply: float

    @property
    def agrees(self) -> bool:
        """Log and histogram within 2 % (log lines are rounded), reply not above the histogram by more."""
        if not np.isfinite(self.histogram):
            return True
        close = abs(self.log - self.histogram) <= 0.02 * self.histogram
        return close and self.reply <= self.histogram * 1.02


def length_agreement(record: Record) -> LengthAgreement:
    """Compare the three ways for one record (all NaN for the dense arm)."""
    lines = [
        (length, running)
        for length, running in zip(
            record.decode_steps.accept_length, record.decode_steps.running_requests, strict=True
        )
        if length is not None
    ]
    weight = sum(running for _, running in lines)
    log = sum(length * running for length, running in lines) / weight if weight else float("nan")
    histograms = [r.accept_histogram for r in record.requests if r.accept_histogram]
    total = [sum(column) for column in zip(*histograms, strict=True)] if histograms else []
    verify = sum(r.verify_steps or 0 for r in record.requests)
    emitted = sum(r.completion_tokens - 1 for r in record.requests if r.verify_steps)
    reply = emitted / verify if verify else float("nan")
    return LengthAgreement(log, histogram_length(total) if total else float("nan"), reply)
