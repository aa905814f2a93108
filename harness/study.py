"""Measure a list of cells on this machine: skip what is done, run the rest, say what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from harness.boots import Boot, BootContext, run_boot
from harness.compose import Cell, boots, tokenizer_path
from harness.errors import ConfigError, RecordError
from harness.measure.inputs import InputStore
from harness.points import Point
from harness.records import Outcome, Record, points_dir, read_record
from harness.view.progress import ProgressView

RETRY = ("none", "failed", "all")
# Failures that measuring again cannot change: the point itself is the reason.
_SETTLED = frozenset({Outcome.OK, Outcome.DOES_NOT_FIT})


@dataclass
class StudyOutcome:
    """What a study left: records just measured and records that were there already."""

    results: Path
    measured: list[Record] = field(default_factory=list)
    found: list[Record] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """All of them."""
        return self.found + self.measured

    @property
    def failed(self) -> list[Record]:
        """Records that are no measurement."""
        return [record for record in self.records if record.outcome is not Outcome.OK]

    def print_summary(self, console: Console) -> None:
        """One line a record, then where they lie."""
        from analysis.summary import summary_lines  # noqa: PLC0415  (pandas and scipy only at the end)

        for line in summary_lines(self.records):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print(f"records: {points_dir(self.results)}", markup=False, highlight=False, soft_wrap=True)


def finished(point: Point, results: Path, retry: str) -> Record | None:
    """The stored record of a point that need not be measured again, else None."""
    if retry not in RETRY:
        raise ConfigError(f"retry={retry} is unknown: choose one of {', '.join(RETRY)}")
    if retry == "all":
        return None
    directory = points_dir(results) / point.key
    if not directory.exists():
        return None
    try:
        record = read_record(directory)
    except RecordError:
        return None  # a damaged record is measured again
    return record if retry == "none" or record.outcome in _SETTLED else None


def measure(
    cells: Sequence[Cell], results: Path, retry: str = "failed", console: Console | None = None
) -> StudyOutcome:
    """Run what is missing of `cells`, grouped by server.

    Raises:
        ConfigError: nothing to measure, or the cells do not share a tokenizer.
    """
    outcome = StudyOutcome(results)
    todo: list[Boot] = []
    for boot in boots(cells):
        missing = []
        for point in boot.points:
            record = finished(point, results, retry)
            if record is None:
                missing.append(point)
            else:
                outcome.found.append(record)
        if missing:
            todo.append(Boot(boot.spec, tuple(missing)))
    if not todo:
        return outcome
    stores: dict[Path, InputStore] = {}
    with ProgressView(sum(len(boot.points) for boot in todo), console) as view:
        by_model = {cell.config.model.name: cell for cell in cells}
        for boot in todo:
            cell = by_model[boot.points[0].model]
            store = stores.setdefault(tokenizer_path(cell), InputStore(tokenizer_path(cell)))
            server = cell.config.server
            context = BootContext(
                results=results,
                inputs=store,
                view=view,
                startup_timeout_s=server.startup_timeout_s,
                stall_limit_s=server.stall_limit_s,
                stop_timeout_s=server.stop_timeout_s,
                port=server.port,
            )
            outcome.measured += run_boot(boot, context)
    return outcome
