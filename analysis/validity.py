"""Is a record a measurement? A verdict with reasons, recomputed from what is stored."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analysis.continuity import interruption_findings
from analysis.counts import asked_tokens, count_findings
from analysis.estimators import MIN_LINES, StepStatistics, length_agreement, step_statistics
from analysis.extras import PenaltyAudit, read_extra
from analysis.machine import busy_text, machine_text
from analysis.outputs import screen_repetition
from analysis.plausible import clock_text, context_text, rate_text, server_text
from analysis.verdict import Reason, Severity, Verdict
from harness.points import SPECULATIVE_ARMS
from harness.records import Outcome, Record

MIN_VERIFY_STEPS = 20
SHORT_DECODE_TOKENS = 32
CLOCK_SPREAD = 0.10


def judge(record: Record, statistics: StepStatistics | None = None, copy_of: str | None = None) -> Verdict:
    """Check a record.

    Args:
        statistics: spares recomputing them where the caller has them.
        copy_of: the key of a record of the same run.
    """
    if record.outcome is not Outcome.OK:
        return Verdict((Reason(record.outcome.value, record.reason or record.outcome.value),))
    if statistics is None:
        statistics = step_statistics(record)
    checks = (
        _prompt(record), _server(record), _context(record), _clock(record), _cache(record),
        _counts(record), _steps(record, statistics), _batch(record, statistics), _retraction(record),
        _early_stop(record), _histograms(record), _dead_draft(record), _impossible_lengths(record),
        _loops(record), _penalty(record), _agreement(record), _clocks(record), _machine(record),
        _log(record), _continuity(record),
    )  # fmt: skip
    found = [reason for check in checks for reason in check]
    if copy_of is not None:
        found.append(Reason("copy", f"the same run as {copy_of}, step by step: it counts once"))
    return Verdict(tuple(found))


def _prompt(record: Record) -> Iterator[Reason]:
    # A foreign log holds no replies, hence no counted prompts.
    if not record.requests and record.source == "measured":
        yield Reason("no_reply", "no reply is stored")
    for counted in sorted({r.prompt_tokens for r in record.requests} - {record.point.context_tokens}):
        asked = record.point.context_tokens
        yield Reason("prompt_length", f"the server counted {counted} prompt tokens, {asked} were asked for")

    if record.input is not None and record.input.prompt_tokens != record.point.context_tokens:
        built, asked = record.input.prompt_tokens, record.point.context_tokens
        yield Reason("prompt_length", f"the input has {built} tokens, {asked} were asked for")


def _server(record: Record) -> Iterator[Reason]:
    if text := server_text(record):
        yield Reason("other_server", text)
    if text := machine_text(record):
        yield Reason("other_machine", text)


def _context(record: Record) -> Iterator[Reason]:
    if text := context_text(record.point, record.decode_steps):
        yield Reason("other_context", text)


def _clock(record: Record) -> Iterator[Reason]:
    if text := rate_text(record.decode_steps):
        yield Reason("impossible_rate", text)
    if text := clock_text(record):
        yield Reason("clock_disagreement", text)


def _cache(record: Record) -> Iterator[Reason]:
    # The log's lines tell of the whole batch; a reply may say nothing, and a foreign log has none.
    logged = max(record.prefill_steps.cached_tokens, default=0)
    hits = max(logged, *(r.cached_tokens or 0 for r in record.requests), 0)
    if hits:
        share = hits / max(record.point.context_tokens, 1)
        severity: Severity = "invalid" if share >= 0.01 else "note"
        yield Reason("cache_hit", f"{hits} prompt tokens came from the prefix cache ({share:.1%})", severity)


def _counts(record: Record) -> Iterator[Reason]:
    yield from (Reason(code, text) for code, text in count_findings(record))


def _steps(record: Record, statistics: StepStatistics | None) -> Iterator[Reason]:
    if statistics is None or statistics.steady_steps < MIN_LINES:
        found = statistics.steady_steps if statistics else 0
        yield Reason("few_steps", f"{found} steady decode steps of {len(record.decode_steps)}: too few")
    # The prefill emits the first token; without speculation each step emits one.
    dense = record.point.arm not in SPECULATIVE_ARMS
    steps = max(
        (r.completion_tokens - 1 if dense else r.verify_steps or 0 for r in record.requests), default=0
    )
    whole = not record.point.shared_prefill  # else the steps of the other batch sizes are left out
    if whole and record.point.batch == 1 and len(record.decode_steps) < 0.9 * steps:
        lines = len(record.decode_steps)
        yield Reason("log_gaps", f"the log holds {lines} of {steps} decode steps", "note")


def _batch(record: Record, statistics: StepStatistics | None) -> Iterator[Reason]:
    if statistics is not None and statistics.batch != record.point.batch:
        reached, asked = statistics.batch, record.point.batch
        yield Reason("batch_not_reached", f"{reached} requests ran together, {asked} were asked for")


def _retraction(record: Record) -> Iterator[Reason]:
    logged = record.log_summary.get("retracted_requests") or 0
    told = sum(r.retractions or 0 for r in record.requests)
    if logged or told:
        yield Reason("retracted", f"{max(logged, told)} requests were retracted: their prefill ran again")


def _early_stop(record: Record) -> Iterator[Reason]:
    point = record.point
    asked = asked_tokens(record)
    short = [
        (request.completion_tokens, tokens)
        for request, tokens in zip(record.requests, asked, strict=False)
        if request.completion_tokens < tokens
    ]
    if short and point.ignore_eos:
        yield Reason("early_stop", f"{min(short)[0]} tokens came back, {min(short)[1]} were asked for")
    elif short and min(short)[0] < SHORT_DECODE_TOKENS:
        text = f"the answer is only {min(short)[0]} tokens long: compare it with care"
        yield Reason("short_decode", text, "note")
    aborted = [r for r in record.requests if r.finish_reason == "abort"]
    if aborted:
        yield Reason("aborted", f"{len(aborted)} requests were aborted by the server")


def _histograms(record: Record) -> Iterator[Reason]:
    depth = record.point.depth
    for request in record.requests:
        counts, verify, correct = request.accept_histogram, request.verify_steps, request.correct_drafts
        if counts is not None:
            weighted = sum(n * c for n, c in enumerate(counts))
            if min(counts, default=0) < 0 or any(counts[depth:]):
                yield Reason("histogram_mismatch", "the accept histogram has impossible bins")
            elif verify is not None and sum(counts) != verify:
                yield Reason(
                    "histogram_mismatch", f"the accept histogram holds {sum(counts)} of {verify} verify steps"
                )
            elif correct is not None and weighted != correct:
                yield Reason(
                    "histogram_mismatch", f"the accept histogram sums to {weighted}, not {correct} drafts"
                )
        if verify is not None and correct is not None:
            beyond = 1 + verify + correct - request.completion_tokens
            if not 0 <= beyond <= depth:
                yield Reason(
                    "token_count_mismatch", f"1 + verify + accepted drafts exceeds the completion by {beyond}"
                )


def _dead_draft(record: Record) -> Iterator[Reason]:
    if record.point.arm not in SPECULATIVE_ARMS:
        return
    verify = sum(r.verify_steps or 0 for r in record.requests)
    correct = [r.correct_drafts for r in record.requests if r.correct_drafts is not None]
    lengths = [a for a in record.decode_steps.accept_length if a is not None]
    dead = verify >= MIN_VERIFY_STEPS and correct and not sum(correct)
    if not correct and len(lengths) >= MIN_VERIFY_STEPS:
        dead = max(lengths) <= 1
    if dead:
        yield Reason(
            "drafter_dead",
            f"not one draft was accepted in {verify or len(lengths)} steps: the draft head may be untrained "
            "or damaged, or the output one that it cannot follow (docs/troubleshooting.md)",
        )


def _impossible_lengths(record: Record) -> Iterator[Reason]:
    logged = record.decode_steps.accept_length
    lengths = [a for a in logged if a is not None]
    if logged and not lengths and record.point.arm in SPECULATIVE_ARMS:
        yield Reason(
            "no_speculation", "no line of the log has an accept length: the server did not speculate"
        )
    if lengths and record.point.arm not in SPECULATIVE_ARMS:
        yield Reason("speculated", "lines of the log have an accept length: the server speculated")
    longest, shortest = max(lengths, default=1.0), min(lengths, default=1.0)
    # The log rounds to two decimals.
    if shortest < 0.99:
        text = f"a step's accept length is {shortest:g}, at least 1 token is emitted: the log is damaged"
        yield Reason("length_below_one", text)
    if longest > record.point.depth + 0.01:
        text = (
            f"a step accepted {longest:g} tokens, at most d = {record.point.depth} can be: another depth ran"
        )
        yield Reason("length_above_depth", text)


def _loops(record: Record) -> Iterator[Reason]:
    loops = [v for r in record.requests if (v := screen_repetition(r.output_ids)).inflates]
    if loops:
        kinds = ", ".join(sorted({str(v) if v.verdict == "loop" else "loop left again" for v in loops}))
        covered = max(v.coverage for v in loops)
        text = (
            f"{len(loops)} of {len(record.requests)} outputs repeat themselves ({kinds}, {covered:.0%} of it)"
        )
        if record.point.arm in SPECULATIVE_ARMS:
            yield Reason("looping", f"{text}: AL is inflated", "acceptance")
        else:  # a step without speculation emits one token whatever the text
            yield Reason("looping", text, "note")


def _penalty(record: Record) -> Iterator[Reason]:
    audit = read_extra(record, "penalty", PenaltyAudit)
    said = {"late": "applied late", "weakened": "weakened", "ignored": "ignored"}
    if audit is None or audit.state not in said:
        return
    share = audit.penalised / audit.judged if audit.judged else 0.0
    yield Reason(
        f"penalty_{audit.state}",
        f"the server {said[audit.state]} the repetition penalty of {audit.repetition_penalty:g}: "
        f"{share:.0%} of the places where it is due had it",
        "note",
    )


def _agreement(record: Record) -> Iterator[Reason]:
    found = length_agreement(record)
    if not found.agrees:
        text = f"AL is {found.log:.2f} by the log, {found.histogram:.2f} by the histogram"
        yield Reason("length_disagreement", f"{text}, {found.reply:.2f} by the reply", "note")


def _clocks(record: Record) -> Iterator[Reason]:
    clocks = np.asarray([c for c in record.samples.get("sm_clock_mhz", []) if c], dtype=np.float64)
    if clocks.size >= 5:
        low, high = np.quantile(clocks, [0.05, 0.95])
        if (high - low) / np.median(clocks) > CLOCK_SPREAD:
            text = f"the GPU's clock moved between {low:.0f} and {high:.0f} MHz"
            yield Reason("unstable_clocks", text, "note")
    throttled = {str(t) for t in record.samples.get("throttle_reasons", []) if t}
    if throttled:
        yield Reason("throttled", f"the GPU was slowed down: {', '.join(sorted(throttled))}", "note")


def _machine(record: Record) -> Iterator[Reason]:
    if text := busy_text(record):
        yield Reason("busy_machine", f"{text}, so that steps may have taken longer", "note")


def _log(record: Record) -> Iterator[Reason]:
    torn = record.log_summary.get("unreadable") or 0
    if torn:
        yield Reason("unreadable_lines", f"{torn} scheduler lines could not be read", "note")


def _continuity(record: Record) -> Iterator[Reason]:
    for text, certain in interruption_findings(record):
        yield Reason("several_runs", text, "invalid" if certain else "note")
