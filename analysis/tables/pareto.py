"""Throughput against latency over batch sizes, with the strict frontier."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from analysis.estimators import Estimate
from analysis.paper import claim
from analysis.pareto import pareto
from analysis.setting import closest, difference
from analysis.study import NAN, Cell, Study, mean_of
from analysis.tables.base import Column, Table, Value
from analysis.tables.heading import header
from analysis.tables.sites import Site, sites

_Place = tuple[str, int, int]
_SHARED = frozenset({"dtype", "kv_dtype", "repetition_penalty", "temperature"})
# A batch runs on past its first end of text, on the prefill of the largest.
_OF_A_BATCH = frozenset({"batch", "tp", "max_new_tokens", "ignore_eos", "shared_prefill", "kv_budget_mib"})


@dataclass(frozen=True)
class RatePoint:
    """One (arm, d, B): tokens/s of one user and of one GPU; NaN where there is no valid value.

    `note` says why there is none, `flag` in what its setting is not the operating one.
    """

    arm: str
    depth: int
    batch: int
    user: Estimate
    gpu: Estimate
    on_frontier: bool
    note: str
    flag: str = ""

    @property
    def place(self) -> _Place:
        """Arm, d and B."""
        return self.arm, self.depth, self.batch


def panels(site: Site, tp: int | None = None) -> dict[tuple[str, int, int], list[RatePoint]]:
    """Rate points by (task, context, tp); the frontier is drawn per arm, over its depths and batches.

    Prompts and repeats are averaged, at the group's usual precision and sampling. Of other settings (the
    window among them) each point takes the closest to the operating conditions, and what is not theirs is
    flagged and on no frontier. Runs within a fixed KV budget are about memory and left out.
    """
    if site.group is None:
        return {}
    found: dict[tuple[str, int, int], dict[_Place, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for arm in ("dense", "native", site.window_arm):
        setup = {name: value for name, value in site.conditions(arm).items() if name in _SHARED}
        for cell in site.group.select(probe=None, arm=arm, kv_budget_mib=None, **setup):
            p = cell.point
            if tp in (None, p.tp):
                found[p.task, p.context_tokens, p.tp][p.arm, p.depth, p.batch].append(cell)
    return {key: _rates(site, key[0], places) for key, places in sorted(found.items())}


def _rates(site: Site, task: str, places: dict[_Place, list[Cell]]) -> list[RatePoint]:
    points = []
    for place, cells in sorted(places.items()):
        conditions = {k: v for k, v in site.setting(place[0], task).items() if k not in _OF_A_BATCH}
        members = closest(cells, conditions)
        rates = [rate for member in members if (rate := _user_rate(member)) is not None]
        user = mean_of(rates) if rates else Estimate(NAN)
        note = "" if rates else members[0].verdict.label
        gpu = user.scaled(place[2] / members[0].point.tp)
        points.append(RatePoint(*place, user, gpu, False, note, difference(members[0], conditions)))
    kept: set[_Place] = set()
    for arm in {point.arm for point in points}:
        like = [p for p in points if p.arm == arm and not p.flag]
        kept |= set(pareto((p.place, p.user.value, p.gpu.value) for p in like).frontier)
    return [replace(point, on_frontier=point.place in kept) for point in points]


def _user_rate(cell: Cell) -> Estimate | None:
    """Tokens/s of one user, 1000 / TPOT, of a cell that counts."""
    if not cell.verdict.acceptance_valid or cell.statistics is None:
        return None
    tpot_ms = cell.statistics.tpot_ms
    return Estimate(1000 / tpot_ms.value, 1000 / tpot_ms.high, 1000 / tpot_ms.low, tpot_ms.n)


def pareto_table(study: Study) -> Table:
    """Figures 4 and 5 as numbers: every batch size, and which points stand on the frontier."""
    table = Table(
        "pareto",
        "Throughput and latency (figures 4 and 5)",
        [Column("model", "model"), Column("hardware", "hardware"), Column("context_tokens", "S"),
         Column("task", "input"), Column("tp", "TP"), Column("arm", "arm"), Column("depth", "d"),
         Column("batch", "B"), Column("user_tokens_per_s", "tokens/s/user", 1),
         Column("gpu_tokens_per_s", "tokens/s/GPU", 1), Column("frontier", "frontier")],
        header(study, "Frontier per arm over its depths and batches; ties that are dominated are out.",
               stand_for="group"),
    )  # fmt: skip
    for site in sites(study):
        for (task, context, tp), rates in panels(site).items():
            for rate in rates:
                paper_arm = "windowed" if rate.arm == site.window_arm else rate.arm
                at_paper = context > 0.98e6 and rate.batch == 1 and tp == 1
                said = claim("figure_4", site.paper, task, paper_arm, "user_speed_b1") if at_paper else None
                user = Value(rate.user, None if rate.flag else said, rate.note, rate.flag)
                table.add(
                    model=site.model, hardware=site.hardware, context_tokens=context, task=task, tp=tp,
                    arm=rate.arm, depth=rate.depth, batch=rate.batch, user_tokens_per_s=user,
                    gpu_tokens_per_s=Value(rate.gpu, note=rate.note, flag=rate.flag),
                    frontier="yes" if rate.on_frontier else "",
                )  # fmt: skip
    return table
