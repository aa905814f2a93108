"""A plan as text."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from harness.host.environment import usable_cores
from harness.points import SPECULATIVE_ARMS
from harness.printable import printable
from harness.sweep.cost import assumed
from harness.sweep.naming import boot_names, names_on_boot
from harness.sweep.plan import Plan, PlannedBoot, PlannedPoint, Price, State
from harness.sweep.starts import start_lines


def lines(plan: Plan, brief: bool = False) -> Iterator[str]:
    """The listing, line by line; `brief` leaves the points and the servers' commands out."""
    yield f"experiments: {', '.join(plan.experiments) or '-'}   hardware: {plan.hardware}"
    names = boot_names(plan)
    for number, boot in enumerate(plan.boots, 1):
        called = printable(names[boot.boot_id])
        yield f"boot {number:>3}  {boot.boot_id}  {called}{_trust(boot)}: {_cost(boot)}"
        if brief:
            continue
        for text in start_lines(boot):
            yield f"    {printable(text)}"
        on_boot = names_on_boot(boot)
        for planned in boot.points:
            yield f"    {printable(_point(planned, on_boot[planned.point.key]))}"
    yield ""
    counts = Counter(point.state for point in plan.points)
    yield f"points: {len(plan.points)} ({', '.join(f'{counts[s]} {s}' for s in State if counts[s])})"
    obstacles = Counter(p.reason for p in plan.points if p.state is State.CANNOT_RUN)
    for reason, count in obstacles.most_common():
        yield f"  {count} cannot run here: {printable(reason)}"
    yield from _totals(plan)
    yield from notes(plan)


def notes(plan: Plan) -> Iterator[str]:
    """What a reader of the outputs has to know of the points that are to run."""
    penalties = {
        p.point.repetition_penalty
        for boot in plan.boots
        for p in boot.to_run
        if p.point.arm in SPECULATIVE_ARMS and p.point.repetition_penalty != 1
    }
    if penalties:
        yield (
            f"note: repetition_penalty={' and '.join(f'{p:g}' for p in sorted(penalties))} is relaxed under "
            "speculation, so that arms may write different texts (docs/losslessness.md); 1 is none"
        )


def _trust(boot: PlannedBoot) -> str:
    return ", runs the checkpoint's own code (trust_remote_code)" if boot.spec.trust_remote_code else ""


def _cost(boot: PlannedBoot) -> str:
    todo = len(boot.to_run)
    if not todo:
        return "nothing to run"
    basis = "" if boot.estimate_measured else ", assumed"
    return (
        f"{todo} to run, {tokens(boot.prefill_tokens)} prefilled, "
        f"about {duration(boot.startup_s + boot.run_s)}{basis}"
    )


def _point(planned: PlannedPoint, name: str) -> str:
    where = f"  [{','.join(planned.experiments)}]" if planned.experiments else ""
    reason = f"  {planned.reason}" if planned.reason else ""
    return f"{planned.state:<16}{planned.point.key}  {name}{where}{reason}"


def _totals(plan: Plan) -> Iterator[str]:
    left, whole = plan.remaining(), plan.whole()
    on_gpus = any(b.gpus for b in plan.boots)
    hours = f", {plan.gpu_hours:.1f} GPU-hours" if on_gpus else ""
    yield f"to run now: {_price(left)}, about {duration(plan.seconds)}{hours}"
    yield from _basis(plan)
    if whole != left:
        hours = f", {plan.whole_gpu_hours:.1f} GPU-hours" if on_gpus else ""
        yield (
            f"the whole study from nothing: {_price(whole)}, about {duration(plan.whole_seconds)}{hours}"
            " (assumed where no record tells)"
        )
    each, distinct = plan.alone(shared=False), plan.alone(shared=True)
    if each != whole:  # else nothing is shared, and there is nothing to compare
        if each != distinct:
            yield f"  one process a point, each table by itself: {_price(each)} {_share(whole, each)}"
            kind = ", shared between tables"
        else:
            kind = ""
        yield f"  one process a point{kind}: {_price(distinct)} {_share(whole, distinct)}"
    repeats = [p.point for p in plan.points if p.point.repeat and p.state is not State.REFUSED]
    if repeats:
        paid = sum(point.batch * point.context_tokens for point in repeats)
        yield (
            f"  repeats prefill again, {tokens(paid)} of it: servers run without a prefix cache, since a hit "
            "leaves the ring without the prompt's draft keys and hybrid models without their state"
        )


def _basis(plan: Plan) -> Iterator[str]:
    """What the times rest on."""
    todo = [boot for boot in plan.boots if boot.to_run]
    guessed = [boot for boot in todo if not boot.estimate_measured]
    known = len(todo) - len(guessed)
    if known:
        which = "the times rest" if not guessed else f"the times of {known} of {len(todo)} boots rest"
        yield f"  {which} on stored records of the same model and hardware, the likest first"
    for text in dict.fromkeys(assumed(boot.to_run[0].point) for boot in guessed):
        yield f"  {'the others' if known else 'no record tells the times, which'} are assumed: {text}"
    load, cores = os.getloadavg()[0], usable_cores()
    if load > cores and any(boot.spec.device == "cpu" for boot in todo):
        yield f"  this machine is busy: {load:.1f} processes want its {cores} cores; it will take longer"


def _price(price: Price) -> str:
    starts = f"{price.starts:,} server start{'s' * (price.starts != 1)}"
    return f"{starts}, {tokens(price.prefill_tokens)} prefilled"


def _share(ours: Price, theirs: Price) -> str:
    if not theirs.starts or not theirs.prefill_tokens:
        return ""
    return (
        f"(this plan: {ours.starts / theirs.starts:.0%} of the starts, "
        f"{ours.prefill_tokens / theirs.prefill_tokens:.0%} of the tokens)"
    )


def tokens(count: int) -> str:
    """A token count for people."""
    for size, unit in ((10**9, "G"), (10**6, "M")):
        if count >= size:
            return f"{count / size:.4g}{unit} tokens"
    return f"{count:,} tokens"


def duration(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
