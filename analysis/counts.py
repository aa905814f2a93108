"""Do the counts of a measured record agree: its replies, their tokens, and the lines of its log?

Each function gives a code and one sentence for what it finds. An imported log has no replies to count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from analysis.estimators import length_agreement
from harness.engine.probes.settings import PROBES
from harness.points import CLIENT_PROBES, WINDOWED_ARMS
from harness.records import Record

LENGTH_TOLERANCE = 0.10
"""Log and histogram tell of the same steps and agree to a rounding; more apart they are of two runs."""
MIN_STEPS = 20
_WHOLE = 0.9
_SURPLUS = 1.1
_SPARE_LINES = 2
"""Lines more than steps: a step that runs while the last request ends is logged too."""
_HASH = re.compile("[0-9a-f]{64}")
_HASH_DIGITS = 5
"""Different digits of a SHA-256 at least; one of 10^35 has fewer."""
_PROBE_DATA = {
    "trace": "phases", "decision": "decision_probe", "attention_mass": "attention_mass",
    "margins": "output_margins", "draws": "draws",
}  # fmt: skip
"""Key of `record.extras` that each probe leaves."""
_SERVER_SAID = {
    "prompt_tokens": "prompt_tokens", "completion_tokens": "completion_tokens",
    "cached_tokens": "cached_tokens", "e2e_latency_s": "e2e_latency", "verify_steps": "spec_verify_ct",
    "correct_drafts": "spec_num_correct_drafts", "proposed_drafts": "spec_num_proposed_drafts",
    "retractions": "num_retractions",
}  # fmt: skip
"""Fields of a reply, and what the server called them in `meta_info`."""

Found = Iterator[tuple[str, str]]


def count_findings(record: Record) -> Found:
    """All contradictions of a record that this program measured."""
    if record.source != "measured" or not record.requests:
        return
    yield from _requests(record)
    yield from _tokens(record)
    yield from _lines(record)
    yield from _lengths(record)
    yield from _labels(record)


def asked_tokens(record: Record) -> list[int]:
    """Tokens that each request may have at most; those of a shared prefill are asked for less."""
    shared = record.extras.get("shared_prefill")
    return list(shared["new_tokens"]) if shared else [record.point.max_new_tokens] * len(record.requests)


def _requests(record: Record) -> Found:
    replies, batch = len(record.requests), record.point.batch
    if replies != batch:
        yield "request_count", f"{replies} replies are stored for a batch of {batch}"


def _tokens(record: Record) -> Found:
    for request, most in zip(record.requests, asked_tokens(record), strict=False):
        got, ids = request.completion_tokens, len(request.output_ids)
        if not 0 <= got <= most:
            yield "token_count_mismatch", f"a reply counts {got} tokens, {most} were asked for at most"
        if ids != got:
            yield "token_count_mismatch", f"{ids} token ids are stored of a reply of {got} tokens"
        proposed, steps = request.proposed_drafts, request.verify_steps
        if proposed is not None and steps is not None and proposed != steps * record.point.gamma:
            text = f"{proposed} drafts were proposed in {steps} steps of {record.point.gamma}"
            yield "token_count_mismatch", text
        for name, said in _SERVER_SAID.items():
            told, kept = request.meta_info.get(said), getattr(request, name)
            if told is not None and kept is not None and told != kept:
                yield "reply_mismatch", f"{name} of a reply is {kept}, the server said {told}"


def _steps(record: Record) -> int:
    """Steps of all requests together; without a count of them no more than the tokens after the first."""
    return sum(
        max(0, r.completion_tokens - 1) if r.verify_steps is None else r.verify_steps for r in record.requests
    )


def _lines(record: Record) -> Found:
    told = sum(record.decode_steps.running_requests)
    steps, spare = _steps(record), _SPARE_LINES * record.point.batch
    if told > _SURPLUS * steps + spare:
        text = f"the log's lines tell of {told} decode steps of a request, the replies of {steps} at most"
        yield "surplus_steps", f"{text}: lines of another run, or doubled ones"


def _lengths(record: Record) -> Found:
    """Log against histogram, where the log has the run's steps and not only a part of them."""
    steps, told = _steps(record), sum(record.decode_steps.running_requests)
    if record.point.shared_prefill or min(steps, len(record.decode_steps)) < MIN_STEPS:
        return
    emitted = sum(max(0, r.completion_tokens - 1) for r in record.requests)
    logged = sum(
        (length or 1) * running
        for length, running in zip(
            record.decode_steps.accept_length, record.decode_steps.running_requests, strict=True
        )
    )
    # The last step of a request may emit beyond its end. Without a histogram this is all that can be told.
    if logged > (1 + LENGTH_TOLERANCE) * emitted + record.point.depth * record.point.batch:
        yield "length_mismatch", f"the log's steps emitted {logged:.0f} tokens, the replies have {emitted}"
    found = length_agreement(record)
    # A comparison with NaN is false: nothing to compare.
    if told >= _WHOLE * steps and abs(found.log - found.histogram) > LENGTH_TOLERANCE * found.histogram:
        text = f"AL is {found.log:.2f} by the log, {found.histogram:.2f} by the histogram"
        yield "length_mismatch", f"{text}: the log is of another run"


def _labels(record: Record) -> Found:
    point = record.point
    if point.probe is not None and point.probe not in {*PROBES, *CLIENT_PROBES}:
        yield "unknown_probe", f"{point.probe!r} is no probe: {', '.join((*PROBES, *sorted(CLIENT_PROBES)))}"
    for probe, key in _PROBE_DATA.items():
        if probe == point.probe and not record.extras.get(key):
            yield "other_probe", f"the point asks for probe {probe}, the record holds nothing of it"
        if probe != point.probe and record.extras.get(key):
            asked = point.probe or "none"
            yield "other_probe", f"the record holds data of probe {probe}, the point asks for {asked}"
    if point.arm in WINDOWED_ARMS and "mode" not in record.server.engine_report:
        yield "other_server", "the plugin said nothing of the draft's mode: who ran is unknown"
    if record.input is None:
        return
    digest = record.input.sha256_ids
    if not _HASH.fullmatch(digest) or len(set(digest)) < _HASH_DIGITS:
        yield "other_prompt", "the prompt's hash is no SHA-256: which tokens were sent is unknown"
    if record.input.task != point.task:
        yield "other_prompt", f"the prompt is of input {record.input.task}, not {point.task}"
    # A generated sample is named by its task, seed and place.
    name = re.fullmatch(r".+-(\d+)-\d+-[0-9a-f]{16}", record.input.sample_id)
    if name and name[1] != str(point.seed):
        yield "other_prompt", f"the prompt is of seed {name[1]}, not {point.seed}"
