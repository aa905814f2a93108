"""Run one boot of a plan in this process: skip what was done meanwhile, lock the rest, measure, record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from harness.boots import Boot, BootContext, View, run_boot
from harness.measure.inputs import InputStore
from harness.points import Point
from harness.records import Outcome, Record, check_room, write_record
from harness.sweep import store
from harness.sweep.locks import PointLocks
from harness.sweep.naming import point_names
from harness.sweep.plan import Plan, PlannedBoot, PlannedPoint, State


def run_planned(plan: Plan, boot: PlannedBoot, view: View, inputs: InputStore | None = None) -> list[str]:
    """Measure what a boot still lacks. Returns a sentence for each point left to another harness.

    Every point that was begun ends in a record, whatever happens to the server.

    Raises:
        RecordError: no record can be written, at the start or later.
    """
    results = Path(plan.results)
    check_room(results)
    elsewhere: list[str] = []
    names = point_names(plan)
    with PointLocks(results) as locks:
        mine: list[PlannedPoint] = []
        for planned in boot.points:
            if planned.state not in (State.TO_RUN, State.REFUSED):
                continue
            if not locks.acquire(planned.point.key):
                elsewhere.append(f"{names[planned.point.key]}: {locks.held_by(planned.point.key)}")
            elif recorded_since(plan, planned) is None and not _done_meanwhile(plan, boot, planned):
                mine.append(planned)
            else:
                locks.release(planned.point.key)
        for planned in mine:
            if planned.state is State.REFUSED:
                _record_refusal(planned, results, view)
        points = tuple(planned.point for planned in mine if planned.state is State.TO_RUN)
        if points:
            before = {planned.point.key: planned for planned in mine}

            def objection(key: str) -> str:
                reason = _objection(plan, before[key], locks)
                if reason:
                    elsewhere.append(f"{names[key]}: {reason}")
                return reason

            run_boot(Boot(boot.spec, points), _context(boot, results, view, objection, inputs))
    return elsewhere


def _objection(plan: Plan, planned: PlannedPoint, locks: PointLocks) -> str:
    """Why a record made now is not to be stored; empty where it is.

    A lock that has only gone (somebody cleared the folder) is taken again: hours of measuring are not
    dropped for it.
    """
    key = planned.point.key
    if locks.still_held(key):
        return ""
    if not locks.retake(key):
        return f"{locks.held_by(key)}: it took over while this one stalled; what this one measured is dropped"
    if recorded_since(plan, planned) is not None:
        return "another harness has stored its record meanwhile; what this one measured is dropped"
    return ""


def recorded_since(plan: Plan, planned: PlannedPoint) -> Record | None:
    """A point's record if it is not the one that stood when the plan was made.

    Times are not compared: a clock may be set back during a run, and a job's machine has its own.
    """
    results = Path(plan.results)
    if store.mark(planned.point, results) == planned.before:
        return None
    return store.stored(planned.point, results)


def _done_meanwhile(plan: Plan, boot: PlannedBoot, planned: PlannedPoint) -> bool:
    """Whether another harness finished the point before this plan was made but after its look at it."""
    return store.finished(planned.point, Path(plan.results), plan.retry, boot.spec) is not None


def _context(
    boot: PlannedBoot,
    results: Path,
    view: View,
    objection: Callable[[str], str],
    inputs: InputStore | None,
) -> BootContext:
    server = boot.server
    on_url = server.kind == "url"
    return BootContext(
        results=results,
        inputs=inputs or InputStore(Path(boot.tokenizer)),
        view=view,
        startup_timeout_s=server.startup_timeout_s,
        stall_limit_s=server.stall_limit_s,
        stop_timeout_s=server.stop_timeout_s,
        port=server.port,
        url=server.url if on_url else None,
        url_log=Path(server.log_path) if on_url and server.log_path else None,
        objection=objection,
    )


def _record_refusal(planned: PlannedPoint, results: Path, view: View) -> None:
    record = failure_record(planned.point, planned.refused_as or Outcome.INVALID, planned.reason)
    write_record(results, record)
    view.point_done(record)


def failure_record(point: Point, outcome: Outcome, reason: str) -> Record:
    """A record of a point that no server ran."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Record(key=point.key, point=point, outcome=outcome, reason=reason, started_at=now)


def record_missing(plan: Plan, points: Iterable[PlannedPoint], reason: str) -> list[Record]:
    """An `interrupted` record for each point that has none of this run and that nobody works on."""
    made = []
    results = Path(plan.results)
    with PointLocks(results) as locks:
        for planned in points:
            if recorded_since(plan, planned) is None and locks.acquire(planned.point.key):
                record = failure_record(planned.point, Outcome.INTERRUPTED, reason)
                write_record(results, record)
                made.append(record)
    return made
