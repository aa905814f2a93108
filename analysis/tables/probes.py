"""Cells that a probe looked into, and the bandwidth floor of the draft's reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from analysis.bandwidth import draft_bytes_per_token, floor_of
from analysis.estimators import Estimate
from analysis.extras import AttentionMass, DecisionProbe, Phases, read_extra
from analysis.study import Cell, Study
from analysis.tables.base import ANY, SITE_COLUMNS, Column, Site, Table, Value, header, sites
from analysis.tables.depth import fits

T = TypeVar("T", Phases, DecisionProbe, AttentionMass)


def probed(site: Site, arm: str, key: str, kind: type[T]) -> Iterator[tuple[Cell, T]]:
    """Cells of an arm that carry an extra, the last repeat of each context and depth."""
    found: dict[tuple[int, int, str], tuple[Cell, T]] = {}
    for cell in site.traced(arm):
        extra = read_extra(cell.record, key, kind)
        if extra is not None:
            found[cell.point.context_tokens, cell.point.depth, cell.point.task] = (cell, extra)
    yield from found.values()


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
        # The fit on most depths comes last, and stays.
        slopes = {
            (context, arm.arm): arm.fit.slope_ms.value
            for _, context, *arms in reversed(fits(site))
            for arm in arms
            if arm.fit
        }
        for arm in ("native", site.window_arm):
            rows: dict[tuple[int, int], list[Cell]] = {}
            for cell in site.cells(arm, probe=ANY):
                rows.setdefault((cell.point.context_tokens, cell.point.depth), []).append(cell)
            for (context, depth), cells in sorted(rows.items()):
                traces = [t for cell in cells if (t := read_extra(cell.record, "phases", Phases))]
                slope = slopes.get((context, arm))
                fitted = slope * (depth - 1) if slope is not None else None
                measured = traces[0].draft_ms if traces else fitted
                source = "trace" if traces else "fit" if fitted is not None else "-"
                floor = next((f for c in cells if (f := floor_of(c.record, bandwidth_gb_per_s))), None)
                known = next((b for c in cells if (b := draft_bytes_per_token(c.record))), None)
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
