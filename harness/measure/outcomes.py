"""From what happened to a point to its record: a finished run, a share of one, a failure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from harness.errors import ServerError
from harness.measure.ladder import MIN_STEPS, steps_at
from harness.measure.protocol import TimedRun
from harness.measure.validity import check_completion_tokens, check_prompt_tokens
from harness.points import Point
from harness.records import InputInfo, Outcome, Record, ServerInfo


def now() -> str:
    """The time, as records hold it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def success(
    point: Point,
    run: TimedRun,
    info: InputInfo,
    began: str,
    duration_s: float,
    environment: dict[str, Any],
    server: ServerInfo,
    new_tokens: Sequence[int] | None = None,
) -> Record:
    """A run that came to its end; `invalid` where it is not the one that was asked for."""
    reasons = _invalid_reasons(point, run, new_tokens or [point.max_new_tokens] * point.batch)
    return Record(
        key=point.key,
        point=point,
        outcome=Outcome.INVALID if reasons else Outcome.OK,
        reason="; ".join(reasons),
        started_at=began,
        duration_s=round(duration_s, 3),
        environment=environment,
        server=server,
        input=info,
        requests=run.requests,
        decode_steps=run.decode_steps,
        prefill_steps=run.prefill_steps,
        log_summary={**run.log_summary, "wall_s": round(run.wall_s, 4)},
    )


def _invalid_reasons(point: Point, run: TimedRun, new_tokens: Sequence[int]) -> list[str]:
    """What makes a finished run no measurement at all; finer verdicts are the analysis' business.

    `new_tokens` is what each request was asked for.
    """
    reasons = []
    for request, tokens in zip(run.requests, new_tokens, strict=True):
        prompt = check_prompt_tokens(point.context_tokens, request.prompt_tokens, request.cached_tokens)
        reasons.append(prompt.reason)
        if request.cached_tokens:
            reasons.append(
                f"{request.cached_tokens} prompt tokens came from the cache: the prefill was not timed"
            )
        if point.ignore_eos:
            asked = check_completion_tokens(
                tokens, request.completion_tokens, request.finish_reason, ignore_eos=True
            )
            reasons.append(asked.reason)
    return sorted({reason for reason in reasons if reason})


def failure(
    point: Point,
    error: ServerError,
    began: str,
    environment: dict[str, Any],
    server: ServerInfo,
    info: InputInfo | None = None,
) -> Record:
    """A point that was not measured, with the first cause."""
    return Record(
        key=point.key,
        point=point,
        outcome=Outcome(error.kind),
        reason=str(error),
        started_at=began,
        environment=environment,
        server=server,
        input=info,
    )


def rung(point: Point, whole: Record, points: Sequence[Point], new_tokens: Sequence[int]) -> Record:
    """The record of one batch size of a shared run: its own steps, and the requests that reached them."""
    steps = steps_at(whole.decode_steps, point.batch)
    reasons = [whole.reason] if whole.reason else []
    if len(steps) < MIN_STEPS:
        reasons.append(
            f"only {len(steps)} decode steps ran at batch {point.batch}, {MIN_STEPS} are needed: the outputs "
            "ended early; measure it with share_prefill=false (force.share_prefill=false in an experiment)"
        )
    shared = {"batches": [each.batch for each in points], "new_tokens": list(new_tokens)}
    return whole.model_copy(
        update={
            "key": point.key,
            "point": point,
            "outcome": Outcome.INVALID if reasons else Outcome.OK,
            "reason": "; ".join(reasons),
            "requests": [request.model_copy() for request in whole.requests[: point.batch]],
            "decode_steps": steps,
            "extras": {**whole.extras, "shared_prefill": shared},
        }
    )


def spoil(record: Record, reason: str) -> None:
    """Make a record no measurement, and say why besides what it says already."""
    record.outcome = Outcome.INVALID
    record.reason = "; ".join(filter(None, (record.reason, reason)))
