"""Several batch sizes from one prefill.

The requests of the largest batch are prefilled once and decode together; some are given fewer new tokens, so
that they end early and the rest goes on as the next smaller batch, down to the smallest. Each batch size is
measured on the decode steps that ran at it. A sweep over B = 1..6 then prefills 6 prompts instead of 21.

What differs from a run of its own: a smaller batch decodes later positions of the same output, over a share
of `max_new_tokens`. Such records say so (`point.shared_prefill`, `extras.shared_prefill`).
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.measure import draws
from harness.points import Point
from harness.records import DecodeSteps

MAX_RUNGS = 7
"""Most batch sizes that share one prefill: each needs decode steps enough out of `max_new_tokens`."""
MIN_STEPS = 7
"""Decode steps that a batch size needs: the estimator drops two and wants five."""


def runs(points: Sequence[Point]) -> list[list[Point]]:
    """The timed runs of a boot: one a point, except that batches may share the prefill of the largest.

    Cheap ones first, so that they are safe before an expensive one can break the server; a shared run
    lists its batches from the largest down.
    """
    made = [[point] for point in points if not point.shared_prefill]
    families: dict[str, list[Point]] = {}
    for point in points:
        if point.shared_prefill:
            families.setdefault(point.model_copy(update={"batch": 1}).key, []).append(point)
    for family in families.values():
        ordered = sorted(family, key=lambda point: -point.batch)
        count = -(-len(ordered) // MAX_RUNGS)
        size = -(-len(ordered) // count)
        made += [ordered[i : i + size] for i in range(0, len(ordered), size)]
    return sorted(made, key=lambda run: (prefill_tokens(run), run[0].key))


def prefill_tokens(run: Sequence[Point]) -> int:
    """Prompt tokens that a run prefills: timed, again for the profiler of a traced point, and for draws."""
    prompts = max(point.batch for point in run)
    if run[0].probe == "trace":
        prompts *= 2
    if run[0].probe == "draws":
        prompts += draws.DRAWS
    return prompts * run[0].context_tokens


def budgets(run: Sequence[Point]) -> list[int]:
    """New tokens for each request of a shared run, longest first.

    Stage j of k ends at max_new_tokens * j / k; then as many requests end as the next batch has fewer.
    """
    batches = [point.batch for point in run]
    if batches != sorted(set(batches), reverse=True):
        raise ValueError(f"batches must fall: {batches}")
    total, stages = run[0].max_new_tokens, len(batches)
    made: list[int] = []
    for stage, (batch, following) in enumerate(zip(batches, [*batches[1:], 0], strict=True), 1):
        made += [max(1, total * stage // stages)] * (batch - following)
    return sorted(made, reverse=True)


def steps_at(steps: DecodeSteps, batch: int) -> DecodeSteps:
    """The decode steps that ran with exactly `batch` requests."""
    rows = [i for i, running in enumerate(steps.running_requests) if running == batch]
    return DecodeSteps(**{name: [column[i] for i in rows] for name, column in steps.model_dump().items()})
