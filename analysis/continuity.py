"""Is a log one run? Two that were joined show it, unless they fit each other to the second."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from harness.records import DecodeSteps, Record

_STAMP_S = 1.0
_PAUSE_S = 60.0
_PAUSE_STEPS = 100
_PERHAPS = "perhaps the lines are of several runs"

Found = Iterator[tuple[str, bool]]


def interruption_findings(record: Record) -> Found:
    """Sentences on what one run does not do, each with whether it is certain that there were several.

    A shared prefill keeps the steps of one batch size, retracted requests begin again: both are left out.
    """
    if record.point.shared_prefill or record.log_summary.get("retracted_requests"):
        return
    steps = record.decode_steps
    yield from _clock_back(steps)
    if record.source == "imported":
        yield from _pauses(steps)
    yield from _begun_again(steps)


def _clock_back(steps: DecodeSteps) -> Found:
    stamps = [(i, t) for i, t in enumerate(steps.time_s, 1) if t is not None]
    for (_, before), (line, after) in pairwise(stamps):
        if after < before - _STAMP_S:
            text = f"the time goes back by {before - after:,.0f} s at decode line {line}"
            yield f"{text}: lines of several runs, or of several files out of order", True
            return


def _pauses(steps: DecodeSteps) -> Found:
    stamps = [(i, t) for i, t in enumerate(steps.time_s, 1) if t is not None]
    gaps = [after - before for (_, before), (_, after) in pairwise(stamps)]
    if not gaps:
        return
    most = int(np.argmax(gaps))
    if gaps[most] > max(_PAUSE_S, _PAUSE_STEPS * float(np.median(gaps))):
        line = stamps[most + 1][0]
        yield f"{gaps[most]:,.0f} s pass before decode line {line}: {_PERHAPS}", False


def _begun_again(steps: DecodeSteps) -> Found:
    """A request that holds fewer tokens than before is another one; so is one more after one has ended."""
    running, tokens = steps.running_requests, steps.resident_tokens
    fallen = False
    # The last line of a request may hold nothing: what it held is on the line before.
    last = tokens[0] if tokens and running[0] == 1 else None
    for i in range(1, len(running)):
        held, before = tokens[i], last
        smaller = running[i] == running[i - 1] == 1 and held and before and held < before
        if smaller or (fallen and running[i] > running[i - 1]):
            text = f"{held:,} tokens after {before:,}" if smaller else f"{running[i]} after {running[i - 1]}"
            what = "a request holds" if smaller else "more requests run again,"
            yield f"{what} {text} at decode line {i + 1}: {_PERHAPS}", False
            return
        fallen = fallen or running[i] < running[i - 1]
        if running[i] != 1:
            last = None
        elif held:
            last = held
