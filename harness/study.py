"""Measure cells on this machine: skip what is done, run the rest, say what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from harness.compose import Cell
from harness.measure.inputs import InputStore
from harness.printable import printable
from harness.records import Record, points_dir
from harness.server.attach import require_answer
from harness.sweep import store
from harness.sweep.course import course_of
from harness.sweep.execute import run_planned
from harness.sweep.listing import notes
from harness.sweep.locks import PointLocks
from harness.sweep.naming import point_names
from harness.sweep.plan import Plan, State, make_plan
from harness.sweep.unkeyed import PromptOrigins
from harness.view.progress import ProgressView


@dataclass
class StudyOutcome:
    """What a study left: its records, and the points that have none.

    Attributes:
        earlier: keys of the records that stood before it began.
    """

    results: Path
    records: list[Record] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    earlier: set[str] = field(default_factory=set)

    @property
    def failed(self) -> list[Record]:
        """Records that are no measurement; out-of-memory cells are results."""
        return [record for record in self.records if record.outcome not in store.SETTLED]

    @property
    def complete(self) -> bool:
        """Whether every point that could run ended in a result."""
        return not self.failed and not self.missing

    @property
    def measured(self) -> bool:
        """Whether every point is a valid measurement: what a command for a single point is for."""
        from analysis.validity import judge  # noqa: PLC0415  (as for the summary)

        return not self.missing and all(judge(record).valid for record in self.records)

    def print_summary(self, console: Console) -> None:
        """One line a record, then where they lie."""
        from analysis.summary import summary_lines  # noqa: PLC0415  (pandas and scipy only at the end)

        def show(text: str) -> None:
            console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

        for record, line in zip(self.records, summary_lines(self.records), strict=True):
            again = f" (stored earlier, {record.started_at})" if record.key in self.earlier else ""
            show(f"{line}{again}")
        for text in self.missing:
            show(f"no new record: {text}")
        folder = points_dir(self.results)
        alone = len(self.records) == 1
        show(f"record: {folder / self.records[0].key}" if alone else f"records: {folder}")
        if self.earlier and alone:
            show("nothing was measured: retry=all measures it again")


def outcome_of(plan: Plan) -> StudyOutcome:
    """What the results directory holds for a plan's points now."""
    outcome = StudyOutcome(Path(plan.results))
    locks, names, origins = PointLocks(outcome.results), point_names(plan), PromptOrigins()
    for boot, planned in ((each, planned) for each in plan.boots for planned in each.points):
        record, name = store.stored(planned.point, outcome.results), names[planned.point.key]
        other = ""
        if record is not None:
            spec = origins.beside(boot.spec, planned.point, boot.tokenizer)
            other = store.other_settings(record, spec)
        if other:
            outcome.missing.append(f"{name}: {other}")
        elif record is not None:
            outcome.records.append(record)
            if planned.before and store.mark(planned.point, outcome.results) == planned.before:
                outcome.earlier.add(record.key)
            if again := store.failed_attempt(planned.point, outcome.results, planned.before):
                outcome.missing.append(
                    f"{planned.point.label}: measured again it ended as {again.outcome} ({again.reason}); "
                    "the record from before stands"
                )
        elif planned.state is State.CANNOT_RUN:
            outcome.missing.append(f"{name}: cannot run here: {planned.reason}")
        elif locks.holder(planned.point.key) is not None:
            outcome.missing.append(f"{name}: {locks.held_by(planned.point.key)} now; run this again later")
        else:
            outcome.missing.append(name)
    return outcome


def measure(
    cells: Sequence[Cell], results: Path, retry: str = "failed", console: Console | None = None
) -> StudyOutcome:
    """Run what is missing of `cells` in this process, grouped by server.

    Raises:
        ConfigError: nothing to measure, settings that make no sense, or a running server that is not there.
    """
    recover(results, console)
    plan = make_plan(cells, results, retry)
    inputs: dict[str, InputStore] = {}
    require_servers(plan)
    if plan.active:
        if console is not None:
            for text in notes(plan):
                console.print(text, markup=False, highlight=False, soft_wrap=True)
        with ProgressView(course_of(plan), console) as view:
            for boot in plan.active:
                prompts = inputs.setdefault(boot.tokenizer, InputStore(Path(boot.tokenizer)))
                for text in run_planned(plan, boot, view, prompts):
                    view.say(f"left out: {text}")
    return outcome_of(plan)


def require_servers(plan: Plan) -> None:
    """Refuse a plan whose running servers do not answer.

    Raises:
        ConfigError: names the address.
    """
    urls = [boot.server.url for boot in plan.boots if boot.server.kind == "url" and boot.to_run]
    for url in dict.fromkeys(filter(None, urls)):
        require_answer(url)


def recover(results: Path, console: Console | None = None) -> None:
    """Put right what a killed run left in a results directory."""
    with PointLocks(results) as locks:
        for text in store.recover(results, locks):
            if console is not None:
                console.print(text, markup=False, highlight=False, soft_wrap=True)
