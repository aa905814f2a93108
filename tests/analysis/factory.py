"""Records with known statistics, for tests. Every number here is made up on purpose."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from harness.points import Point
from harness.records import (
    DecodeSteps,
    InputInfo,
    Outcome,
    Pool,
    PrefillSteps,
    Record,
    RequestResult,
    ServerInfo,
)

# Probability that draft j is accepted given the ones before it.
ALPHA = (0.8, 0.7, 0.65, 0.6, 0.55, 0.5)


def make_record(
    arm: str = "native",
    *,
    step_ms: float = 20.0,
    steps: int = 80,
    alpha: float = 1.0,
    noise: float = 0.02,
    outcome: Outcome = Outcome.OK,
    reason: str = "",
    request: dict[str, Any] | None = None,
    record: dict[str, Any] | None = None,
    **point: Any,
) -> Record:
    """One record.

    Args:
        step_ms: the true step time, with `noise` relative scatter.
        alpha: scales the acceptance probabilities.
        request, record: fields to override.
        point: fields of the point.
    """
    depth = 1 if arm == "dense" else point.pop("depth", 7)
    window = {"window_tokens": 252, "sink_tokens": 4} if arm in ("windowed", "ring") else {}
    fields: dict[str, Any] = {
        "model": "tiny", "checkpoint": "c0ffee", "hardware": "cpu", "arm": arm, "depth": depth,
        "context_tokens": 8192, "task": "niah_multiquery_enum",
        "draft_backend": "-" if arm == "dense" else "intel_amx", **window, **point,
    }  # fmt: skip
    p = Point(**fields)
    rng = np.random.Generator(np.random.PCG64([p.seed, p.repeat, p.context_tokens, depth, len(arm)]))
    accepted = [_accepted(rng, depth, alpha) for _ in range(steps)]
    histogram = [accepted.count(n) for n in range(depth)]
    correct = sum(accepted)
    completion = 1 + steps + correct
    times = step_ms * (1 + noise * rng.standard_normal(steps))
    speculative = arm != "dense"
    decode = DecodeSteps(
        time_s=[
            float(second) for second in 1_000_000_000 + np.cumsum(times) // 1000
        ],  # whole seconds, as logged
        running_requests=[p.batch] * steps,
        resident_tokens=[p.batch * (p.context_tokens + sum(accepted[:i]) + i) for i in range(steps - 1)]
        + [0],
        accept_length=[float(1 + n) if speculative else None for n in accepted],
        throughput_tokens_per_s=[
            round(1000 * p.batch * (1 + n) / t, 2) for n, t in zip(accepted, times, strict=True)
        ],
        queued_requests=[0] * steps,
    )
    answer: dict[str, Any] = {
        "prompt_tokens": p.context_tokens,
        "completion_tokens": completion,
        "cached_tokens": 0,
        "finish_reason": "stop",
        "output_ids": [int(i) for i in rng.permutation(10 * completion)[:completion]],
    }
    if speculative:
        answer |= {
            "verify_steps": steps, "correct_drafts": correct, "proposed_drafts": steps * (depth - 1),
            "accept_histogram": histogram,
        }  # fmt: skip
    answer |= request or {}
    pools = [Pool(role="target", tokens=1_100_000, bytes=22_000_000_000, dtype="bfloat16")]
    if speculative:
        slots = 1_100_000 if arm != "ring" else 4 * (4 + 252 + depth)
        pools.append(Pool(role="draft", tokens=slots, bytes=2000 * slots, dtype="bfloat16"))
    prompt = hashlib.sha256(f"{p.task} {p.context_tokens} {p.seed}".encode()).hexdigest()
    base: dict[str, Any] = {
        "key": p.key, "point": p, "outcome": outcome, "reason": reason,
        "started_at": "2026-11-30T00:00:00+00:00", "duration_s": 3.0,
        "environment": {"cpu": "test cpu", "versions": {"sglang": "0.5.23"}},
        "server": ServerInfo(
            pools=pools, engine_report={"mode": arm} if arm in ("windowed", "ring") else {}
        ),
        "input": InputInfo(
            task=p.task, sample_id=str(p.seed), prompt_tokens=p.context_tokens, sha256_ids=prompt
        ),
        "requests": [RequestResult(**answer) for _ in range(p.batch)],
        "decode_steps": decode,
        "prefill_steps": PrefillSteps(time_s=[1.0e9], new_tokens=[p.context_tokens], cached_tokens=[0],
                                      throughput_tokens_per_s=[5000.0]),
        "log_summary": {"unreadable": 0, "retracted_requests": 0},
    }  # fmt: skip
    if outcome is not Outcome.OK:
        base |= {"requests": [], "decode_steps": DecodeSteps(), "prefill_steps": PrefillSteps()}
    return Record(**(base | (record or {})))


def _accepted(rng: np.random.Generator, depth: int, alpha: float) -> int:
    for j in range(depth - 1):
        if rng.random() > min(1.0, ALPHA[min(j, 5)] * alpha):
            return j
    return depth - 1


def small_study() -> list[Record]:
    """Four arms, two contexts, three prompts; depths 2 to 8 on one prompt; two windows; a batch sweep."""
    records = []
    for context, tax in ((8192, 2.0), (32768, 8.0)):
        for seed in range(3):
            where = {"context_tokens": context, "seed": seed}
            records += [
                make_record("dense", step_ms=8 + tax / 8, **where),
                make_record("native", step_ms=20 + tax, **where),
                make_record("windowed", step_ms=20.2, alpha=0.98, **where),
                make_record("ring", step_ms=20.0, alpha=0.98, **where),
            ]
    for depth in (2, 3, 4, 5, 6, 8, 9):
        jump = 4.0 if depth >= 5 else 0.0
        records.append(make_record("native", depth=depth, step_ms=6 + jump + 2.0 * (depth - 1), noise=0.002))
        records.append(make_record("ring", depth=depth, step_ms=7 + jump + 1.5 * (depth - 1), noise=0.002))
    records.append(make_record("ring", step_ms=19.5, alpha=0.8, window_tokens=64))
    records.append(make_record("ring", step_ms=20.4, window_tokens=1024))
    for batch in (2, 4):
        for arm, cost in (("dense", 3.0), ("native", 9.0), ("ring", 6.0)):
            records.append(make_record(arm, step_ms=18 + cost * batch, batch=batch))
    records.append(
        make_record("native", batch=8, outcome=Outcome.OUT_OF_MEMORY_AT_RUN, reason="the pool is full")
    )
    return records
