"""The timed run: warm-up, cache flush, one request of exactly S tokens, and what the log said meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import schedlog
from harness.acceptance import read_speculation
from harness.errors import ServerError
from harness.measure import finite
from harness.measure.margins import OPTIONS as MARGIN_OPTIONS
from harness.measure.margins import margins, without_logprobs
from harness.points import Point
from harness.records import DecodeSteps, Outcome, PrefillSteps, RequestResult
from harness.server.attach import AnyServer
from harness.server.liveness import Limits, Liveness, Verdict

WARMUP_PROMPT_TOKENS = 64
WARMUP_NEW_TOKENS = 8
_POLL_S = 0.2
_SETTLE_S = 3.0
_LOOK_S = 5.0


@dataclass(frozen=True)
class TimedRun:
    """What one timed run left: replies, log rows, and the raw log they came from.

    `began_ns` and `ended_ns` are `time.monotonic_ns()` before the request and after its reply. `margins` are
    those of the first reply, where the point asks for them.
    """

    requests: list[RequestResult]
    decode_steps: DecodeSteps
    prefill_steps: PrefillSteps
    log_summary: dict[str, Any]
    raw_log: bytes
    wall_s: float
    began_ns: int = 0
    ended_ns: int = 0
    margins: list[float] | None = None


def sampling_parameters(point: Point) -> dict[str, Any]:
    """Sampling of the timed request: greedy unless the point says otherwise."""
    return {
        "temperature": point.temperature,
        "max_new_tokens": point.max_new_tokens,
        "repetition_penalty": point.repetition_penalty,
        "ignore_eos": point.ignore_eos,
    }


def warm_up(server: AnyServer, prompt_ids: Sequence[int], batch: int) -> None:
    """One tiny generation so that kernels are compiled and tuned, then an empty cache.

    Another before it asks for log probabilities, as a model of NaN would be measured like any other.

    Raises:
        ServerError: the model computes no finite numbers, or the server failed.
    """
    prompt = list(prompt_ids[:WARMUP_PROMPT_TOKENS])
    sampling = {"temperature": 0.0, "max_new_tokens": WARMUP_NEW_TOKENS, "ignore_eos": True}
    try:
        replies = request(server, [prompt], sampling, stall_limit_s=600.0, options=finite.OPTIONS)
    except ServerError as error:
        if error.kind != Outcome.REQUEST_ERROR:
            raise
        replies = []  # a server that gives no log probabilities: nothing can be said
    if finite.not_finite(replies):
        raise finite.refusal()
    request(server, [prompt] * batch, sampling, stall_limit_s=600.0)
    server.client.flush_cache()


def timed_run(
    server: AnyServer,
    point: Point,
    prompt_ids: Sequence[int],
    decode_text: Callable[[Sequence[int]], str],
    stall_limit_s: float,
    new_tokens: Sequence[int] | None = None,
) -> TimedRun:
    """Send the record B times in one batch and collect replies and log rows.

    Args:
        new_tokens: most new tokens of each request; None: the point's for all.
        prompt_ids: exactly `point.context_tokens` ids.
        decode_text: token ids -> text, for the stored outputs.
        stall_limit_s: seconds without any scheduler line after which the server counts as stalled.

    Raises:
        ServerError: typed by first cause.
    """
    server.read_log()
    mark = server.log_size()
    began_ns = time.monotonic_ns()
    sampling = sampling_parameters(point)
    each = [{**sampling, "max_new_tokens": count} for count in new_tokens] if new_tokens else sampling
    options = MARGIN_OPTIONS if point.probe == "margins" else {}
    replies = request(server, [prompt_ids] * point.batch, each, stall_limit_s, options)
    ended_ns = time.monotonic_ns()
    raw = _settled_log(server, mark, replies)
    parsed = schedlog.parse(raw)
    return TimedRun(
        requests=[_result(reply, point, decode_text) for reply in replies],
        decode_steps=schedlog.to_decode_steps(parsed),
        prefill_steps=schedlog.to_prefill_steps(parsed),
        log_summary=parsed.summary(),
        raw_log=raw,
        wall_s=(ended_ns - began_ns) / 1e9,
        began_ns=began_ns,
        ended_ns=ended_ns,
        margins=margins(replies[0]) if point.probe == "margins" else None,
    )


def request(
    server: AnyServer,
    prompts: Sequence[Sequence[int]],
    sampling: dict[str, Any] | list[dict[str, Any]],
    stall_limit_s: float,
    options: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Run /generate in a thread while this one follows the log and watches the process.

    Raises:
        ServerError: typed by first cause.
    """
    outcome: dict[str, Any] = {}

    def send() -> None:
        try:
            outcome["replies"] = server.client.generate(prompts, sampling, timeout_s=None, **(options or {}))
        except Exception as error:  # noqa: BLE001  (raised again in the waiting thread)
            outcome["error"] = error

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    began = looked = time.monotonic()
    watch = Liveness(began, Limits(stall_s=stall_limit_s, stopped_s=min(60.0, stall_limit_s)))
    watch.ready(began)
    watch.request_sent(began)
    while thread.is_alive():
        thread.join(_POLL_S)
        now = time.monotonic()
        if server.read_log():
            watch.scheduler_line(now)
        server.raise_if_dead("run")
        if now - looked > _LOOK_S:
            looked = now
            watch.process_state(now, "stopped" if server.has_stopped_process() else "running")
        judgement = watch.judge(now)
        if judgement.verdict is Verdict.STALLED:
            stacks = server.dump_stacks()
            seen = f"; what its processes were doing: {stacks}" if stacks else ""
            raise ServerError(
                f"the server hangs: {judgement.reason} (server.stall_limit_s={stall_limit_s:.0f}){seen}",
                Outcome.STALLED,
            )
    if "error" in outcome:
        raise outcome["error"]
    replies: list[dict[str, Any]] = outcome["replies"]
    return replies


def _settled_log(server: AnyServer, mark: int, replies: list[dict[str, Any]]) -> bytes:
    """The log since `mark`, once it holds the last decode line: the reply may overtake it."""
    steps = max(int(reply["meta_info"].get("spec_verify_ct") or 0) for reply in replies)
    wanted = steps or max(int(reply["meta_info"]["completion_tokens"]) - 1 for reply in replies)
    deadline = time.monotonic() + _SETTLE_S
    while True:
        server.read_log()
        raw = server.log_since(mark)
        if len(schedlog.parse(raw).decode) >= wanted or time.monotonic() > deadline:
            return raw
        time.sleep(_POLL_S)


def _result(
    reply: dict[str, Any], point: Point, decode_text: Callable[[Sequence[int]], str]
) -> RequestResult:
    meta = reply["meta_info"]
    depth = point.depth if point.arm != "dense" else None
    speculation = read_speculation(meta, depth)
    finish = meta.get("finish_reason")
    histogram = speculation.histogram
    return RequestResult(
        prompt_tokens=int(meta["prompt_tokens"]),
        completion_tokens=int(meta["completion_tokens"]),
        cached_tokens=meta.get("cached_tokens"),
        finish_reason=finish.get("type") if isinstance(finish, dict) else finish,
        e2e_latency_s=meta.get("e2e_latency"),
        output_ids=list(reply["output_ids"]),
        output_text=decode_text(reply["output_ids"]),
        verify_steps=speculation.verify_steps,
        correct_drafts=speculation.correct_drafts,
        proposed_drafts=speculation.proposed_drafts,
        accept_histogram=list(histogram) if histogram is not None else None,
        retractions=meta.get("num_retractions"),
        meta_info=without_logprobs(meta),
    )
