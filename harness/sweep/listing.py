"""A plan as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from harness.printable import printable
from harness.sweep.plan import Plan, PlannedBoot, PlannedPoint, Price, State


def lines(plan: Plan, brief: bool = False) -> Iterator[str]:
    """The listing, line by line; `brief` leaves the points out."""
    yield f"experiments: {', '.join(plan.experiments) or '-'}   hardware: {plan.hardware}"
    for number, boot in enumerate(plan.boots, 1):
        yield from _boot(number, boot, brief)
    yield ""
    counts = Counter(point.state for point in plan.points)
    yield f"points: {len(plan.points)} ({', '.join(f'{counts[s]} {s}' for s in State if counts[s])})"
    obstacles = Counter(p.reason for p in plan.points if p.state is State.CANNOT_RUN)
    for reason, count in obstacles.most_common():
        yield f"  {count} cannot run here: {printable(reason)}"
    yield from _totals(plan)


def _boot(number: int, boot: PlannedBoot, brief: bool) -> Iterator[str]:
    todo = len(boot.to_run)
    cost = "nothing to run"
    if todo:
        basis = "" if boot.estimate_measured else ", assumed"
        cost = (
            f"{todo} to run, {tokens(boot.prefill_tokens)} prefilled, "
            f"about {duration(boot.startup_s + boot.run_s)}{basis}"
        )
    model = boot.points[0].point.model
    label = f"{model} {boot.spec.label} {boot.spec.kv_dtype} KV"
    trust = ", runs the checkpoint's own code (trust_remote_code)" if boot.spec.trust_remote_code else ""
    yield f"boot {number:>3}  {boot.boot_id}  {label}{trust}: {cost}"
    if brief:
        return
    for planned in boot.points:
        yield f"    {_point(planned)}"


def _point(planned: PlannedPoint) -> str:
    point = planned.point
    where = ",".join(planned.experiments)
    extras = [f"repeat {point.repeat}"] if point.repeat else []
    extras += [f"seed {point.seed}"] if point.seed else []
    extras += ["shared prefill"] if point.shared_prefill else []
    extras += [f"probe {point.probe}"] if point.probe else []
    detail = f" ({', '.join(extras)})" if extras else ""
    text = (
        f"{planned.state:<16}{point.key}  S={point.context_tokens} B={point.batch} {point.task}{detail}"
        f"{f'  [{where}]' if where else ''}"
    )
    return f"{text}  {printable(planned.reason)}" if planned.reason else text


def _totals(plan: Plan) -> Iterator[str]:
    left, whole = plan.remaining(), plan.whole()
    each, distinct = plan.alone(shared=False), plan.alone(shared=True)
    yield f"to run now: {_price(left)}, about {duration(plan.seconds)}" + (
        f", {plan.gpu_hours:.1f} GPU-hours" if any(b.gpus for b in plan.boots) else ""
    )
    todo = [boot for boot in plan.boots if boot.to_run]
    if todo:
        measured = sum(1 for boot in todo if boot.estimate_measured)
        yield f"  times of {measured} of {len(todo)} boots come from stored records, the others are assumed"
    yield (
        f"the whole study from nothing: {_price(whole)}, about {duration(plan.whole_seconds)}"
        + (f", {plan.whole_gpu_hours:.1f} GPU-hours" if any(b.gpus for b in plan.boots) else "")
        + " (assumed where no record tells)"
    )
    yield f"  one process a point, each table by itself: {_price(each)} {_share(whole, each)}"
    yield f"  one process a point, shared between tables: {_price(distinct)} {_share(whole, distinct)}"
    repeats = [p.point for p in plan.points if p.point.repeat and p.state is not State.REFUSED]
    if repeats:
        paid = sum(point.batch * point.context_tokens for point in repeats)
        yield (
            f"  repeats prefill again, {tokens(paid)} of it: servers run without a prefix cache, since a hit "
            "leaves the ring without the prompt's draft keys and hybrid models without their state"
        )


def _price(price: Price) -> str:
    return f"{price.starts} server starts, {tokens(price.prefill_tokens)} prefilled"


def _share(ours: Price, theirs: Price) -> str:
    if not theirs.starts or not theirs.prefill_tokens:
        return ""
    return (
        f"(this plan: {ours.starts / theirs.starts:.0%} of the starts, "
        f"{ours.prefill_tokens / theirs.prefill_tokens:.0%} of the tokens)"
    )


def tokens(count: int) -> str:
    """A token count for people."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.4g}{unit} tokens"
    return f"{count} tokens"


def duration(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
