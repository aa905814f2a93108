"""Acceptance: tables 9 and 10."""

from __future__ import annotations

from analysis.acceptance import PositionAcceptance, acceptance_length, conditional_acceptance
from analysis.estimators import Estimate
from analysis.study import Cell, Study, accept_length, counted, pooled, pooled_ratio, tpot_ms, why_missing
from analysis.tables.base import RATIO_NOTE, SITE_COLUMNS, Column, Table, Value, valued
from analysis.tables.heading import header
from analysis.tables.sites import Site, contexts, main_depth, main_task, sites


def positions(cells: list[Cell]) -> tuple[list[PositionAcceptance], str, str]:
    """alpha_j over the requests of cells that count, why there is none, and a flag of doubtful ones."""
    used, flag = counted(cells, accept_length)
    histograms = [
        r.accept_histogram[: c.point.depth] + [0] * (c.point.depth - len(r.accept_histogram))
        for c in used
        for r in c.record.requests
        if r.accept_histogram
    ]
    if not histograms:
        return [], why_missing(cells) if not used else "the server gave no histogram", ""
    return conditional_acceptance(histograms), "", flag


def table_9(study: Study) -> Table:
    """alpha_j by draft position with Wilson intervals; `requests` columns: bootstrap over requests."""
    places = [(site, main_task(site), context) for site in sites(study)
              for context in contexts(site, task=main_task(site), arm=lambda a: a != "dense")]  # fmt: skip
    depths = [main_depth(site, task=task, context_tokens=context) for site, task, context in places]
    gamma = max(depths, default=7) - 1
    columns = [*SITE_COLUMNS, Column("task", "input"), Column("arm", "arm"), Column("steps", "verify steps")]
    columns += [Column(f"alpha_{j}", f"alpha_{j}", 3) for j in range(1, gamma + 1)]
    table = Table(
        "table_9",
        "Table 9: conditional acceptance by draft position",
        [*columns, Column("accept_length", "AL")],
        header(study, "Brackets: 95 % Wilson intervals over steps, too narrow where steps of one request are "
                      "correlated; with 3 requests or more the bootstrap over requests stands behind r:. "
                      "A position that no step reached is empty (-)."),
    )  # fmt: skip
    for (site, task, context), depth in zip(places, depths, strict=True):
        for arm in ("native", site.window_arm):
            _position_row(table, site, task, depth, context, arm)
    return table


def _position_row(table: Table, site: Site, task: str, depth: int, context: int, arm: str) -> None:
    cells = site.cells(arm, task=task, context_tokens=context, depth=depth)
    rows, why, flag = positions(cells)
    paper_arm = "native" if arm == "native" else "windowed"
    said = site.claim("table_9", task, paper_arm, "acceptance_length", context)
    shown: dict[str, Value] = {}
    for row in rows:
        if row.alpha is None:
            shown[f"alpha_{row.position}"] = Value(None, note="-")
            continue
        assert row.low is not None and row.high is not None
        wide = "" if row.request_low is None else f"r: {row.request_low:.2f} to {row.request_high:.2f}"
        wide = "; ".join(filter(None, (wide, flag)))
        shown[f"alpha_{row.position}"] = Value(Estimate(row.alpha, row.low, row.high, row.reached), flag=wide)
    length = Value(Estimate(acceptance_length(rows), n=rows[0].reached), said, flag=flag) if rows else None
    table.add(
        model=site.model, hardware=site.hardware, context_tokens=context, task=task, arm=arm,
        steps=rows[0].reached if rows else 0, accept_length=length or Value(None, said, why), **shown,
    )  # fmt: skip


def table_10(study: Study) -> Table:
    """Dose and response: acceptance length and TPOT by window."""
    table = Table(
        "table_10",
        "Table 10: window size",
        [*SITE_COLUMNS, Column("task", "input"), Column("window", "window"), Column("accept_length", "AL"),
         Column("tpot_ms", "TPOT ms"), Column("native_over_arm", "TPOT native / arm", 3)],
        header(study, RATIO_NOTE),
    )  # fmt: skip
    for site in sites(study):
        task = main_task(site)
        for context in contexts(site, task=task, arm=lambda a: a != "dense"):
            depth = main_depth(site, task=task, context_tokens=context)
            where = {"task": task, "context_tokens": context, "depth": depth}
            native = site.cells("native", **where)
            windows = site.values("window_tokens", arm=site.window_arm, batch=1, **where)
            for window in windows if site.group else [1024, 4032]:
                cells = site.cells(site.window_arm, window_tokens=window, **where)
                name = f"windowed_w{window}"
                table.add(
                    model=site.model, hardware=site.hardware, context_tokens=context, task=task,
                    window=f"{window:,}",
                    accept_length=valued(
                        pooled(cells, accept_length),
                        site.claim("table_10", task, name, "acceptance_length", context),
                    ),
                    tpot_ms=valued(pooled(cells, tpot_ms)),
                    native_over_arm=valued(
                        pooled_ratio(native, cells, tpot_ms),
                        site.claim("table_10", task, name, "tpot_ratio_to_native", context),
                    ),
                )  # fmt: skip
            table.add(
                model=site.model, hardware=site.hardware, context_tokens=context, task=task,
                window="all (native)",
                accept_length=valued(
                    pooled(native, accept_length),
                    site.claim("table_2", task, "native", "acceptance_length", context),
                ),
                tpot_ms=valued(
                    pooled(native, tpot_ms), site.claim("table_2", task, "native", "tpot", context)
                ),
            )  # fmt: skip
    return table
