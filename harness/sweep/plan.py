"""The plan of a study: every point with its state, grouped into boots, with what it will cost.

The same object is listed by `python -m harness.plan` and executed by `python -m harness`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from harness.compose import Cell
from harness.config import ServerConfig
from harness.errors import ConfigError
from harness.measure.ladder import prefill_tokens, runs
from harness.points import Point
from harness.records import Outcome, Record, read_all
from harness.server.spec import ServerSpec
from harness.sweep import store
from harness.sweep.cost import History
from harness.sweep.grouping import Group, Wanted, group, merge, refusal
from harness.sweep.unkeyed import PromptOrigins


class State(StrEnum):
    """Where a point stands before the run."""

    DONE = "done"
    OTHER = "other settings"  # its record was measured with settings that no point names
    TO_RUN = "to run"
    REFUSED = "refused"  # its record is written without a server
    CANNOT_RUN = "cannot run here"


@dataclass(frozen=True)
class PlannedPoint:
    """One point of a plan.

    Attributes:
        reason: why it is done, run again, refused or not possible.
        before: which record the point had when the plan was made (`store.mark`); empty for none.
    """

    point: Point
    state: State
    experiments: tuple[str, ...] = ()
    reason: str = ""
    refused_as: Outcome | None = None
    before: str = ""


@dataclass(frozen=True)
class PlannedBoot:
    """One server start and its points; estimates are of what is to run, `whole_s` of all but the refused."""

    boot_id: str
    spec: ServerSpec
    server: ServerConfig
    tokenizer: str
    points: tuple[PlannedPoint, ...]
    startup_s: float = 0.0
    run_s: float = 0.0
    estimate_measured: bool = False
    whole_s: float = 0.0

    @property
    def to_run(self) -> tuple[PlannedPoint, ...]:
        """Points that need the server."""
        return tuple(p for p in self.points if p.state is State.TO_RUN)

    @property
    def starts(self) -> int:
        """Server starts: 0 where nothing is to run, or where the server runs already."""
        return int(bool(self.to_run) and self.server.kind != "url")

    @property
    def gpus(self) -> int:
        """GPUs that the boot occupies."""
        return 0 if self.spec.device == "cpu" else self.spec.tp

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that the boot prefills."""
        return sum(prefill_tokens(run) for run in runs([p.point for p in self.to_run]))


@dataclass(frozen=True)
class Price:
    """Server starts and prefilled prompt tokens of one way to measure points."""

    starts: int
    prefill_tokens: int


@dataclass(frozen=True)
class Plan:
    """A study before it runs; `created_at` is for people only, as clocks are set and differ."""

    results: str
    retry: str
    hardware: str
    boots: tuple[PlannedBoot, ...]
    experiments: tuple[str, ...] = ()
    created_at: str = ""

    @property
    def points(self) -> list[PlannedPoint]:
        """All points, boot by boot."""
        return [point for boot in self.boots for point in boot.points]

    @property
    def active(self) -> list[PlannedBoot]:
        """Boots with something to run or to refuse."""
        return [b for b in self.boots if any(p.state in (State.TO_RUN, State.REFUSED) for p in b.points)]

    def boot(self, boot_id: str) -> PlannedBoot:
        """One boot by its id."""
        for boot in self.boots:
            if boot.boot_id == boot_id:
                return boot
        raise ConfigError(f"the plan has no boot {boot_id}: it was made for other settings")

    def remaining(self) -> Price:
        """What is left to pay."""
        return Price(sum(b.starts for b in self.boots), sum(b.prefill_tokens for b in self.boots))

    def whole(self) -> Price:
        """The price of the study from nothing: finished points and those that cannot run here included."""
        kept = [(boot, _priced(boot)) for boot in self.boots]
        return Price(
            sum(1 for boot, points in kept if points and boot.server.kind != "url"),
            sum(prefill_tokens(run) for _, points in kept for run in runs([p.point for p in points])),
        )

    def alone(self, shared: bool) -> Price:
        """The price with one process and one prefill a point.

        Args:
            shared: whether a point that several experiments need is measured once; else once for each.
        """
        starts = tokens = 0
        for boot in self.boots:
            for planned in _priced(boot):
                times = 1 if shared else max(1, len(planned.experiments))
                starts += times * (boot.server.kind != "url")
                tokens += times * prefill_tokens([planned.point])
        return Price(starts, tokens)

    @property
    def seconds(self) -> float:
        """Estimated time of what is to run, one boot after the other."""
        return sum(b.startup_s + b.run_s for b in self.boots)

    @property
    def gpu_hours(self) -> float:
        """Estimated GPU-hours of what is to run."""
        return sum(b.gpus * (b.startup_s + b.run_s) for b in self.boots) / 3600

    @property
    def whole_seconds(self) -> float:
        """Estimated time of the study from nothing."""
        return sum(b.whole_s for b in self.boots)

    @property
    def whole_gpu_hours(self) -> float:
        """Estimated GPU-hours of the study from nothing."""
        return sum(b.gpus * b.whole_s for b in self.boots) / 3600


def _priced(boot: PlannedBoot) -> list[PlannedPoint]:
    return [p for p in boot.points if p.state is not State.REFUSED]


def make_plan(cells: Iterable[Cell], results: Path, retry: str = "failed") -> Plan:
    """Plan what is missing of the cells' points.

    Raises:
        ConfigError: an unknown `retry`, or a cell that makes no sense.
    """
    store.check_retry(retry)
    wanted = merge(cells)
    if not wanted:
        raise ConfigError("there is nothing to measure")
    history = History.of(read_all(results)[0])
    origins = PromptOrigins()
    boots = tuple(_planned_boot(g, results, retry, history, origins) for g in group(wanted.values()))
    experiments = dict.fromkeys(name for member in wanted.values() for name in member.experiments)
    hardware = next(iter(wanted.values())).cell.config.hardware.name
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Plan(str(results), retry, hardware, boots, tuple(experiments), now)


def _planned_boot(
    members: Group, results: Path, retry: str, history: History, origins: PromptOrigins
) -> PlannedBoot:
    points = tuple(_planned_point(m, members, results, retry, origins) for m in members.members)
    todo = [p.point for p in points if p.state is State.TO_RUN]
    starts = members.server.kind != "url"
    startup_s, run_s, measured = _estimate(todo, starts, history)
    whole = _estimate([p.point for p in points if p.state is not State.REFUSED], starts, history)
    return PlannedBoot(
        members.boot_id, members.spec, members.server, members.tokenizer, points, startup_s, run_s, measured,
        whole[0] + whole[1],
    )  # fmt: skip


def _estimate(points: list[Point], starts: bool, history: History) -> tuple[float, float, bool]:
    """Seconds of a server's start and of its runs, and whether their rates were measured."""
    if not points:
        return 0.0, 0.0, False
    startup_s, measured = history.startup_s(points[0])
    run_s = 0.0
    for run in runs(points):
        seconds, known = history.run_s(run[0], prefill_tokens(run))
        run_s, measured = run_s + seconds, measured and known
    return startup_s if starts else 0.0, run_s, measured


def _planned_point(
    member: Wanted, members: Group, results: Path, retry: str, origins: PromptOrigins
) -> PlannedPoint:
    point, experiments, spec = member.point, tuple(member.experiments), members.spec
    mark = store.mark(point, results)  # before the record is looked at: a later one must differ from it
    record = store.finished(point, results, retry, spec)
    if record is not None:
        now = origins.beside(spec, point, members.tokenizer)
        if other := store.other_settings(record, now):
            return PlannedPoint(point, State.OTHER, experiments, other, before=mark)
        return PlannedPoint(point, State.DONE, experiments, _ended(record), before=mark)
    obstacle = store.of_another_release(point, results) or member.cell.obstacle
    if obstacle:
        return PlannedPoint(point, State.CANNOT_RUN, experiments, obstacle, before=mark)
    refused = refusal(member)
    if refused is not None:
        return PlannedPoint(point, State.REFUSED, experiments, refused.reason, refused.outcome, mark)
    before = store.stored(point, results)
    damaged = "" if before else store.unreadable(point, results)
    reason = f"before: {_ended(before)}" if before else f"will be set aside: {damaged}" if damaged else ""
    return PlannedPoint(point, State.TO_RUN, experiments, reason, before=mark)


def _ended(record: Record) -> str:
    return record.outcome if record.outcome is Outcome.OK else f"{record.outcome}: {record.reason}"
