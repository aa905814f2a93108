"""One plain line a record, for the end of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.estimators import Estimate, step_statistics
from analysis.outputs import screen_repetition
from analysis.validity import judge
from harness.printable import printable
from harness.records import Outcome, Record


def summary_lines(records: Sequence[Record]) -> list[str]:
    """What each record says, in plain words."""
    return [summary_line(record) for record in records]


def summary_line(record: Record) -> str:
    """`label: step 21.3 ms [20.9, 21.8], AL 2.41 [...], TPOT ...` or why there is no number."""
    return printable(_line(record))


def _line(record: Record) -> str:
    label = record.point.label
    if record.outcome is not Outcome.OK:
        return f"{label}: {record.outcome} - {record.reason}"
    # A foreign log has no replies to count.
    tokens = sum(request.completion_tokens for request in record.requests)
    count = f"{tokens} tokens" if record.source == "measured" else f"{len(record.decode_steps)} decode lines"
    found = step_statistics(record)
    if found is None:
        return f"{label}: {count}, too few decode steps for a steady state"
    text = (
        f"{label}: step {show(found.step_ms)} ms, AL {show(found.accept_length)}, "
        f"TPOT {show(found.tpot_ms)} ms over {found.steady_steps} steady steps; {count}"
    )
    loops = [str(v) for r in record.requests if (v := screen_repetition(r.output_ids)).verdict == "loop"]
    if loops:
        text += f"; the output repeats itself ({', '.join(sorted(set(loops)))}), which inflates AL"
    reasons = judge(record, found).reasons
    invalid = [reason.text for reason in reasons if reason.severity == "invalid"]
    if invalid:
        text += f"; no measurement: {'; '.join(invalid)}"
    doubts = [r.text for r in reasons if r.code == "several_runs" and r.severity == "note"]
    if doubts:
        text += f"; note: {'; '.join(doubts)}"
    # Inputs without an answer have a score of NaN.
    scores = [score for r in record.requests if math.isfinite(score := r.scores.get("strict", math.nan))]
    if scores:
        text += f"; {sum(scores) / len(scores):.0%} of the expected answers found (strict score)"
    return text


def show(estimate: Estimate, digits: int = 2) -> str:
    """`value [low, high]`, or the value alone where no interval can be claimed."""
    text = f"{estimate.value:.{digits}f}"
    if estimate.low == estimate.low and estimate.high == estimate.high:
        text += f" [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"
    return text
