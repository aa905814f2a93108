"""Do the parts of a record agree: the context, the server's arguments, the rates, and the clocks?

A step's time comes from its throughput: those of a run add up to its latency and to its time stamps.

Each function gives one sentence, or nothing where the parts agree or where there is nothing to compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from analysis.estimators import LENGTHS, RATES, SKIPPED_LINES, effective_batch, within
from harness.points import SPECULATIVE_ARMS, Point
from harness.records import DecodeSteps, Record
from harness.server.reported import (
    UNKNOWN_BACKEND,
    contradictions,
    differing,
    mode_difference,
    of_point,
)

Floats = npt.NDArray[np.float64]

CLOCK_TOLERANCE = 0.05
"""Share by which two clocks of one run may differ; runs on a busy machine stay within 2 %."""
_UNCERTAIN_FACTOR = 3.0
"""The same where a log leaves steps out: lines that stand for several, or some that are missing."""
HELD = (0.95, 1.1)
"""Of the prompt: a request may hold no less than the first at most, no more than the second at least."""
_OUTPUT_TOKENS = 512
_STAMP_S = 1.0
_IDLE_S = 1.0
"""Between the step before the run and its request, both in the gap of the first line."""
_SINGLE = 1.5
"""Steps a line below which each line is taken for one: a line's tokens are those of the step before."""
_PAUSE = 10
_NEARLY_COMPLETE = 0.9


def server_text(record: Record) -> str:
    """How the server's own arguments, and what its plugin said, contradict the point."""
    point, reported = record.point, record.server.arguments
    if record.source == "measured":
        wrong = contradictions(point, reported) if reported else []
    else:
        wrong = differing(of_point(point, reported.get("device") == "cpu"), reported)
    report = record.server.engine_report
    mode = report.get("mode", "off")
    if mode != "off":  # a record without the plugin's line is another check's
        wrong += mode_difference(point.arm, mode)
        stated = {"window": point.window_tokens, "sink": point.sink_tokens, "draft_tokens": point.depth}
        wrong += [
            f"the plugin's {name} is {report[name]}, not {value}"
            for name, value in stated.items()
            if name in report and report[name] != str(value)
        ]
    wrong += _other_cpu_backend(record)
    return f"the server was another one: {'; '.join(wrong)}" if wrong else ""


def _other_cpu_backend(record: Record) -> list[str]:
    """On a CPU the draft has the target's backend and no argument of its own."""
    point, reported = record.point, record.server.arguments
    own = reported.get("attention_backend")
    if reported.get("device") != "cpu" or point.arm not in SPECULATIVE_ARMS or not isinstance(own, str):
        return []
    if point.draft_backend in (own, UNKNOWN_BACKEND):
        return []
    return [f"attention_backend of a CPU is {own!r}, also the draft's, not {point.draft_backend!r}"]


def context_text(point: Point, steps: DecodeSteps) -> str:
    """Whether a running request holds about as many tokens as the prompt has; all that a bare log tells."""
    lines = [
        (running, tokens / running)
        for running, tokens in zip(steps.running_requests, steps.resident_tokens, strict=True)
        if tokens and running > 0
    ]
    held = [share for running, share in lines if running == point.batch] or [share for _, share in lines]
    asked = point.context_tokens
    if held and max(held) < HELD[0] * asked:
        most = f"a running request held {max(held):,.0f} tokens at most"
        return f"{most}, the prompt has {asked:,}: another context, or a prefix that requests shared"
    if held and min(held) > HELD[1] * asked + _OUTPUT_TOKENS:
        least = f"a running request held {min(held):,.0f} tokens from the first step on"
        return f"{least}, the prompt has {asked:,}: another context, or the decode began earlier"
    return ""


def rate_text(steps: DecodeSteps) -> str:
    """A throughput that no machine has, and whose inverse is no time."""
    low, high = RATES
    odd = [x for x in steps.throughput_tokens_per_s if x and not low <= x <= high]
    return f"a step's throughput is {odd[0]:g} tokens/s, which no server reaches" if odd else ""


def clock_text(record: Record) -> str:
    """Whether rates, the requests' latency and the log's time stamps tell of the same run."""
    steps = record.decode_steps
    rates = np.asarray(steps.throughput_tokens_per_s, dtype=np.float64)
    lengths = np.asarray([1.0 if a is None else a for a in steps.accept_length], dtype=np.float64)
    running = np.asarray(steps.running_requests, dtype=np.int64)
    sound = within(rates, RATES) & within(lengths, LENGTHS) & (running > 0)
    tokens = np.multiply(running, lengths, out=np.zeros_like(rates), where=sound)
    times_s = np.divide(tokens, rates, out=np.zeros_like(rates), where=sound)
    batch = effective_batch(running, record.point.batch)
    if batch is None:
        return ""
    at_batch = np.flatnonzero(sound & (running == batch))
    return _against_latency(record, times_s, at_batch) or _against_stamps(steps, times_s, tokens, at_batch)


def _against_latency(record: Record, times_s: Floats, at_batch: npt.NDArray[np.int64]) -> str:
    """The steps must fit into the request; all fill it, since the gap before the first holds the prefill."""
    known = [r.e2e_latency_s for r in record.requests if r.e2e_latency_s is not None]
    if not known:
        return ""
    latency = max(known)
    steady, whole = float(times_s[at_batch[SKIPPED_LINES:]].sum()), float(times_s.sum())
    expected = max(r.verify_steps or r.completion_tokens - 1 for r in record.requests)
    # Of a shared prefill only the steps of one batch size are kept.
    lines = 0 if record.point.shared_prefill else len(times_s)
    least = 0.0
    if lines >= expected:
        least = latency * (1 - CLOCK_TOLERANCE)
    elif lines >= _NEARLY_COMPLETE * expected:
        least = latency / _UNCERTAIN_FACTOR
    most = latency * (1 + CLOCK_TOLERANCE)
    # The first gap began after the record did, however long its prompt took to arrive.
    room = max(most + _IDLE_S, record.duration_s or 0.0)
    if steady > most or whole < least or (lines and whole > room):
        took = steady if steady > most else whole
        return f"by their throughput the steps took {took:.3g} s, the request {latency:.3g} s: {_ADVICE}"
    return ""


def _against_stamps(
    steps: DecodeSteps, times_s: Floats, tokens: Floats, at_batch: npt.NDArray[np.int64]
) -> str:
    """The tokens of a stretch without a pause over its stamps, which are whole seconds, beside its rates."""
    stretch = _longest_stretch([(int(i), t) for i in at_batch if (t := steps.time_s[i]) is not None])
    if len(stretch) < 2:
        return ""
    (first, begin), (last, end) = stretch[0], stretch[-1]
    inner = [i for i, _ in stretch[1:]]
    emitted, took = float(tokens[inner].sum()), float(times_s[inner].sum())
    # A line may stand for many steps (--decode-log-interval): then the tokens held tell how many came.
    held = [steps.resident_tokens[i] or 0 for i in (first, *inner)]
    grown = float(max(held) - held[0]) if held[0] else 0.0
    steps_a_line = max(1.0, grown / emitted)
    took *= steps_a_line
    factor = 1 + CLOCK_TOLERANCE if steps_a_line < _SINGLE else _UNCERTAIN_FACTOR
    least, most = max(0.0, end - begin - _STAMP_S), end - begin + _STAMP_S
    if least / factor <= took <= most * factor:
        return ""
    return (
        f"by their throughput the steps from {first + 1} to {last + 1} took {took:.3g} s, by the log's time "
        f"stamps {least:.3g} to {most:.3g} s: {_ADVICE}"
    )


_ADVICE = "the throughput is in another unit, or the lines are of several runs"


def _longest_stretch(lines: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Lines one after the other without a pause, of those that take longest; a clock set back is one too."""
    if not lines:
        return []
    gaps = [b - a for (_, a), (_, b) in pairwise(lines)]
    pause = 2 * _STAMP_S + _PAUSE * (float(np.median(gaps)) if gaps else 0.0)
    stretches = [[lines[0]]]
    for gap, line in zip(gaps, lines[1:], strict=True):
        if 0 <= gap <= pause:
            stretches[-1].append(line)
        else:
            stretches.append([line])
    return max(stretches, key=lambda part: (part[-1][1] - part[0][1], len(part)))
