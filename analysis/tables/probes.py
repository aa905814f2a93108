"""Cells that a probe looked into, and the bandwidth floor of the draft's reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from analysis.bandwidth import draft_bytes_per_token, floor_of
from analysis.estimators import Estimate
from analysis.extras import AttentionMass, DecisionProbe, Phases, read_extra
from analysis.paper import Claim
from analysis.setting import closest, difference
from analysis.study import Cell, Study, why_missing
from analysis.tables.base import SITE_COLUMNS, Column, Table, Value
from analysis.tables.depth import fits
from analysis.tables.heading import header
from analysis.tables.sites import ANY, Site, main_task, sites
from harness.records import Record

T = TypeVar("T", Phases, DecisionProbe, AttentionMass)


@dataclass(frozen=True)
class Chosen:
    """The cell that stands for one context, depth and input of an arm.

    `note` says why it does not count, `flag` in what its setting is not the operating one.
    """

    cell: Cell
    note: str = ""
    flag: str = ""

    @property
    def place(self) -> tuple[int, int, str]:
        """Context in tokens, depth, and task."""
        p = self.cell.point
        return p.context_tokens, p.depth, p.task

    def value(self, estimate: Estimate | None, said: Claim | None = None, note: str = "-") -> Value:
        """Something that was measured of it, as a table value; `note` where it was not."""
        said = None if self.flag else said
        return Value(None, said, self.note) if self.note else Value(estimate, said, note)

    def titled(self, text: str) -> str:
        """A text that names the row, with the unusual setting behind it."""
        return f"{text} ({self.flag})" if self.flag else text


def chosen(site: Site, arm: str, carries: Callable[[Record], bool]) -> list[Chosen]:
    """One cell for each context, depth and input of an arm, of those whose record `carries` what is asked.

    It is the last that counts of those whose setting is the closest to the operating conditions.
    """
    found: dict[tuple[int, int, str], list[Cell]] = {}
    for cell in site.group.select(arm=arm) if site.group else []:
        if carries(cell.record):
            p = cell.point
            found.setdefault((p.context_tokens, p.depth, p.task), []).append(cell)
    out = []
    for (_, _, task), cells in sorted(found.items()):
        conditions = site.setting(arm, task)
        like = closest(cells, conditions)
        cell = next((c for c in reversed(like) if c.verdict.valid), like[-1])
        note = "" if cell.verdict.valid else why_missing([cell])
        out.append(Chosen(cell, note, difference(cell, conditions)))
    return out


def probed(site: Site, arm: str, key: str, kind: type[T]) -> list[tuple[Chosen, T]]:
    """Chosen cells of an arm that carry an extra, and the extra."""
    read = partial(read_extra, key=key, kind=kind)
    cells = chosen(site, arm, lambda record: read(record) is not None)
    return [(one, extra) for one in cells if (extra := read(one.cell.record)) is not None]


def bandwidth(study: Study, bandwidth_gb_per_s: float | None = None) -> Table:
    """The least time the draft's KV reads can take, beside the measured draft."""
    table = Table(
        "bandwidth",
        "Bandwidth floor of the draft's KV reads",
        [*SITE_COLUMNS, Column("arm", "arm"), Column("depth", "d"),
         Column("bytes_per_token", "KV bytes/token", 0),
         Column("floor_ms", "floor ms/step", 4), Column("measured_ms", "measured draft ms", 3),
         Column("source", "measured by"), Column("times_floor", "measured / floor", 1)],
        header(study, "floor = bytes/token x keys read x gamma / peak bandwidth. Measured: the traced draft, "
                      "else gamma x t_fwd of the latency fit on most depths.",
                      "n/a: no peak bandwidth is known of the machine (--bandwidth GB/s), or no bytes of its "
                      "draft's pool."),
    )  # fmt: skip
    for site in sites(study):
        task = main_task(site)
        # The fit on most depths comes last, and stays.
        slopes = {
            (context, arm.arm): arm.fit.slope_ms.value
            for _, context, *arms in reversed(fits(site))
            for arm in arms
            if arm.fit
        }
        for arm in ("native", site.window_arm):
            draft_ms = {
                one.place[:2]: phases.draft_ms
                for one, phases in sorted(
                    probed(site, arm, "phases", Phases), key=lambda f: f[0].place[2] == task
                )
                if not one.note and not one.flag
            }
            rows: dict[tuple[int, int], list[Cell]] = {}
            for context in site.values("context_tokens", arm=arm, batch=1):
                for cell in site.cells(arm, context_tokens=context, probe=ANY):
                    rows.setdefault((context, cell.point.depth), []).append(cell)
            for (context, depth), cells in sorted(rows.items()):
                traced = draft_ms.get((context, depth))
                slope = slopes.get((context, arm))
                fitted = slope * (depth - 1) if slope is not None else None
                measured = traced if traced is not None else fitted
                source = "trace" if traced is not None else "fit" if fitted is not None else "-"
                sound = [c.record for c in cells if c.verdict.of_point]
                floor = next((f for r in sound if (f := floor_of(r, bandwidth_gb_per_s))), None)
                known = next((b for r in sound if (b := draft_bytes_per_token(r))), None)
                table.add(
                    model=site.model, hardware=site.hardware, context_tokens=context, arm=arm, depth=depth,
                    bytes_per_token=Value(Estimate(known) if known else None, note="n/a"),
                    floor_ms=Value(Estimate(floor.step_ms) if floor else None, note="n/a"),
                    measured_ms=Value(
                        Estimate(measured) if measured is not None else None, note="not traced, no fit"
                    ),
                    source=source,
                    times_floor=Value(
                        Estimate(measured / floor.step_ms) if measured is not None and floor else None,
                        note="n/a",
                    ),
                )  # fmt: skip
    return table
