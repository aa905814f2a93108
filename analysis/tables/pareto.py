"""Throughput against latency over batch sizes, with the strict frontier."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from analysis.estimators import Estimate
from analysis.paper import claim
from analysis.pareto import pareto
from analysis.setting import usual
from analysis.study import NAN, Cell, Group, Study
from analysis.tables.base import Column, Table, Value, header, sites
from harness.points import WINDOWED_ARMS

_SETUP = frozenset({"dtype", "kv_dtype", "repetition_penalty", "temperature"})


@dataclass(frozen=True)
class RatePoint:
    """One (arm, d, B): tokens/s of one user and of one GPU; NaN where there is no valid value."""

    arm: str
    depth: int
    batch: int
    user: float
    gpu: float
    on_frontier: bool
    note: str


def panels(group: Group, tp: int | None = None) -> dict[tuple[str, int, int], list[RatePoint]]:
    """Rate points by (task, context, tp); the frontier is drawn per arm, over its depths and batches.

    Prompts and repeats are averaged, at the group's usual precision and sampling; window arms stand at their
    operating window. Runs within a fixed KV budget are about memory and left out.
    """
    setup = {name: value for name, value in usual(group).items() if name in _SETUP}
    found: dict[tuple[str, int, int], list[Cell]] = defaultdict(list)
    for arm in ("dense", "native", group.window_arm):
        window = group.operating_window() if arm in WINDOWED_ARMS else None
        for cell in group.select(probe=None, arm=arm, window_tokens=window, kv_budget_mib=None, **setup):
            p = cell.point
            if tp in (None, p.tp):
                found[p.task, p.context_tokens, p.tp].append(cell)
    return {key: _rates(cells) for key, cells in sorted(found.items())}


def _rates(cells: list[Cell]) -> list[RatePoint]:
    by_setting: dict[tuple[str, int, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        by_setting[cell.point.arm, cell.point.depth, cell.point.batch].append(cell)
    means: dict[tuple[str, int, int], tuple[float, float]] = {}
    for setting, members in by_setting.items():
        rates = [rate for member in members if math.isfinite((rate := _rate(member))[0])]
        user, gpu = (sum(r[i] for r in rates) / len(rates) if rates else NAN for i in (0, 1))
        means[setting] = user, gpu
    kept: set[tuple[str, int, int]] = set()
    for arm in {setting[0] for setting in means}:
        kept |= set(pareto((s, *rate) for s, rate in means.items() if s[0] == arm).frontier)
    return [
        RatePoint(*setting, *means[setting], setting in kept, _why(by_setting[setting], means[setting]))
        for setting in sorted(means)
    ]


def _why(members: list[Cell], rate: tuple[float, float]) -> str:
    return "" if math.isfinite(rate[0]) else members[0].verdict.label


def _rate(cell: Cell) -> tuple[float, float]:
    """(tokens/s/user, tokens/s/GPU) of a cell that counts."""
    if not cell.verdict.acceptance_valid or cell.statistics is None:
        return NAN, NAN
    found = cell.statistics
    return found.tokens_per_s_per_user(), found.tokens_per_s_per_gpu(cell.point.tp)


def pareto_table(study: Study) -> Table:
    """Figures 4 and 5 as numbers: every batch size, and which points stand on the frontier."""
    table = Table(
        "pareto",
        "Throughput and latency (figures 4 and 5)",
        [Column("model", "model"), Column("hardware", "hardware"), Column("context_tokens", "S"),
         Column("task", "input"), Column("tp", "TP"), Column("arm", "arm"), Column("depth", "d"),
         Column("batch", "B"), Column("user_tokens_per_s", "tokens/s/user", 1),
         Column("gpu_tokens_per_s", "tokens/s/GPU", 1), Column("frontier", "frontier")],
        header(study, "Frontier per arm over its depths and batches; ties that are dominated are out."),
    )  # fmt: skip
    for site in sites(study):
        for (task, context, tp), rates in panels(site.group).items() if site.group else []:
            for rate in rates:
                paper_arm = "windowed" if rate.arm == site.window_arm else rate.arm
                at_paper = context > 0.98e6 and rate.batch == 1 and tp == 1
                said = claim("figure_4", site.paper, task, paper_arm, "user_speed_b1") if at_paper else None
                user = Value(Estimate(rate.user), said, rate.note)
                table.add(
                    model=site.model, hardware=site.hardware, context_tokens=context, task=task, tp=tp,
                    arm=rate.arm, depth=rate.depth, batch=rate.batch, user_tokens_per_s=user,
                    gpu_tokens_per_s=Value(Estimate(rate.gpu), note=rate.note),
                    frontier="yes" if rate.on_frontier else "",
                )  # fmt: skip
    return table
