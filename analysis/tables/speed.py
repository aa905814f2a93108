"""Step cost and end-to-end speed: tables 1, 2, 4, 13, KV precision, and the content spread of a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from analysis.estimators import Estimate
from analysis.paper import Claim, claim
from analysis.speedup import split_ratio
from analysis.study import (
    Cell,
    Pooled,
    Study,
    accept_length,
    counted,
    pooled,
    pooled_difference,
    pooled_ratio,
    prompt_hash,
    step_ms,
    tpot_ms,
)
from analysis.tables.base import RATIO_NOTE, SITE_COLUMNS, Column, Table, Value, as_ratio, valued
from analysis.tables.heading import header
from analysis.tables.sites import Site, contexts, main_depth, main_task, sites

_PAPER_ARM = {"dense": "dense", "native": "native", "ring": "windowed", "windowed": "windowed"}
_H100 = "qwen3.6-35b-a3b-fp8-h100"


def table_1(study: Study) -> Table:
    """Step cost: native against Windowed-MTP at d = 7, and the saving."""
    table = Table(
        "table_1",
        "Table 1: cost of one decode step",
        [*SITE_COLUMNS, Column("task", "input"), Column("depth", "d"), Column("prompts", "prompts"),
         Column("native_step_ms", "native step ms"), Column("ring_step_ms", "ring step ms"),
         Column("saving_ms", "saving ms"), Column("step_ratio", "native / ring", 3)],
        header(study, RATIO_NOTE),
    )  # fmt: skip
    for site in sites(study):
        task = main_task(site)
        for context in contexts(site, task=task, arm=lambda a: a != "dense"):
            depth = main_depth(site, task=task, context_tokens=context)
            where = {"task": task, "context_tokens": context, "depth": depth}
            native, ring = site.cells("native", **where), site.cells(site.window_arm, **where)
            table.add(
                model=site.model, hardware=site.hardware, context_tokens=context, task=task, depth=depth,
                prompts=_prompts(native, ring),
                native_step_ms=valued(
                    pooled(native, step_ms), site.claim("table_1", task, "native", "step", context)
                ),
                ring_step_ms=valued(
                    pooled(ring, step_ms), site.claim("table_1", task, "windowed", "step", context)
                ),
                saving_ms=_difference(
                    native, ring, site.claim("table_1", task, "windowed_over_native", "step_saving", context)
                ),
                step_ratio=valued(
                    pooled_ratio(native, ring, step_ms),
                    as_ratio(
                        site.claim("table_1", task, "windowed_over_native", "step_speedup", context)
                    ),
                ),
            )  # fmt: skip
    return table


def _prompts(*sets: Sequence[Cell]) -> int:
    """Prompts of the sets' valid cells; of several sets those that all have, as ratios are over them."""
    seeds = [{c.point.seed for c in cells if c.verdict.valid} for cells in sets]
    common = set.intersection(*seeds)
    return len(common or set.union(*seeds))


def _difference(native: Sequence[Cell], ring: Sequence[Cell], said: Claim | None = None) -> Value:
    """Mean of step native less step ring, over the pairs that the ratio is of."""
    found = pooled_difference(native, ring, step_ms)
    return Value(found.estimate, said, found.note, found.flag)


_END_TO_END = [
    *SITE_COLUMNS, Column("task", "input"), Column("arm", "arm"), Column("prompts", "prompts"),
    Column("accept_length", "AL"), Column("step_ms", "step ms"), Column("tpot_ms", "TPOT ms"),
    Column("step_native_over_arm", "step native / arm", 3), Column("native_over_arm", "TPOT native / arm", 3),
    Column("dense_over_arm", "TPOT dense / arm", 3),
]  # fmt: skip


def table_2(study: Study) -> Table:
    """End to end: acceptance length, TPOT and speedups of every arm at d = 7."""
    table = Table("table_2", "Table 2: end to end", _END_TO_END, header(study, RATIO_NOTE))
    for site in sites(study):
        task = main_task(site)
        for context in contexts(site, task=task):
            _arm_rows(table, site, task, context, "table_2")
    return table


def table_4(study: Study) -> Table:
    """Other hardware than the paper's B200: the same columns as table 2."""
    table = Table("table_4", "Table 4: other hardware", _END_TO_END, header(study, RATIO_NOTE))
    h100 = False
    for site in sites(study):
        if site.group is None or "b200" in site.hardware.lower():
            continue
        task = main_task(site)
        for context in contexts(site, task=task):
            is_h100 = site.paper == "qwen3.6-35b-a3b" and "h100" in site.hardware.lower()
            h100 |= is_h100
            _arm_rows(table, site, task, context, "table_4" if is_h100 else "")
    if not h100:
        ghost = Site("Qwen3.6-35B-A3B-FP8", "H100 (paper)", _H100, None)
        _arm_rows(table, ghost, "niah_multiquery_enum", 1_040_000, "table_4")
    return table


def _arm_rows(table: Table, site: Site, task: str, context: int, artifact: str) -> None:
    depth = main_depth(site, task=task, context_tokens=context)
    dense = site.cells("dense", task=task, context_tokens=context)
    native = site.cells("native", task=task, context_tokens=context, depth=depth)
    arms = ["dense", "native", "windowed", "ring"] if site.group else ["dense", "native", "ring"]

    def said(name: str, quantity: str, shown: bool = True) -> Claim | None:
        at_paper = 0.98e6 <= context <= 1.1e6 and bool(artifact) and shown
        return claim(artifact, paper, task, name, quantity) if at_paper else None

    paper = _H100 if artifact == "table_4" else site.paper
    for arm in arms:
        cells = dense if arm == "dense" else site.cells(arm, task=task, context_tokens=context, depth=depth)
        if not cells and site.group is not None and not cells.why:
            continue
        stands = arm == site.window_arm

        mine = arm in ("dense", "native") or stands
        over_native = as_ratio(said("windowed_over_native", "tpot_speedup", stands)) or said(
            "windowed_over_native", "tpot_ratio", stands
        )
        table.add(
            model=site.model, hardware=site.hardware, context_tokens=context, task=task,
            arm=arm,
            prompts=_prompts(cells),
            accept_length=valued(
                pooled(cells, accept_length), said(_PAPER_ARM[arm], "acceptance_length", mine)
            ),
            step_ms=valued(pooled(cells, step_ms)),
            tpot_ms=valued(pooled(cells, tpot_ms), said(_PAPER_ARM[arm], "tpot", mine)),
            step_native_over_arm=None if arm in ("dense", "native") else valued(
                pooled_ratio(native, cells, step_ms)
            ),
            native_over_arm=None if arm == "native" else valued(
                pooled_ratio(native, cells, tpot_ms), over_native
            ),
            dense_over_arm=None if arm == "dense" else valued(
                pooled_ratio(dense, cells, tpot_ms), said("windowed_over_dense", "tpot_ratio", stands)
            ),
        )  # fmt: skip


def table_13(study: Study) -> Table:
    """Every input: speedups over dense, native against ring, split by equation 3."""
    table = Table(
        "table_13",
        "Table 13: full sweep over inputs",
        [*SITE_COLUMNS, Column("task", "input"), Column("dense_tpot_ms", "dense TPOT ms"),
         Column("native_al", "native AL"), Column("native_over_dense", "native speedup", 3),
         Column("ring_al", "ring AL"), Column("ring_over_dense", "ring speedup", 3),
         Column("ring_over_native", "TPOT native / ring", 3), Column("cost_factor", "cost factor", 3),
         Column("acceptance_factor", "AL factor", 3)],
        header(study, RATIO_NOTE, "Equation 3: TPOT native / ring = cost factor x AL factor."),
    )  # fmt: skip
    for site in sites(study):
        for task in site.values("task", batch=1, probe=None) or ["niah_multiquery_enum"]:
            for context in contexts(site, task=task, batch=1, probe=None):
                depth = main_depth(site, task=task, context_tokens=context)
                where = {"task": task, "context_tokens": context}
                dense = site.cells("dense", **where)
                native = site.cells("native", depth=depth, **where)
                ring = site.cells(site.window_arm, depth=depth, **where)

                said = partial(_table_13_claim, site, task, context)
                cost, acceptance = _factors(native, ring)
                table.add(
                    model=site.model, hardware=site.hardware, context_tokens=context, task=task,
                    dense_tpot_ms=valued(pooled(dense, tpot_ms)),
                    native_al=valued(pooled(native, accept_length), said("native", "acceptance_length")),
                    native_over_dense=valued(
                        pooled_ratio(dense, native, tpot_ms), said("native_over_dense", "tpot_ratio")
                    ),
                    ring_al=valued(pooled(ring, accept_length), said("windowed", "acceptance_length")),
                    ring_over_dense=valued(pooled_ratio(dense, ring, tpot_ms)),
                    ring_over_native=valued(
                        pooled_ratio(native, ring, tpot_ms),
                        as_ratio(said("windowed_over_native", "tpot_speedup")),
                    ),
                    cost_factor=valued(cost), acceptance_factor=valued(acceptance),
                )  # fmt: skip
    return table


def _table_13_claim(site: Site, task: str, context: int, arm: str, quantity: str) -> Claim | None:
    return site.claim("table_13", task, arm, quantity, context)


def _factors(native: Sequence[Cell], ring: Sequence[Cell]) -> tuple[Pooled, Pooled]:
    """Cost factor (steps) and acceptance factor (AL ring / AL native) of equation 3, over the same pairs."""
    native, ring = counted(native, tpot_ms)[0], counted(ring, tpot_ms)[0]
    return pooled_ratio(native, ring, step_ms), pooled_ratio(ring, native, accept_length)


def equation_3(native: Cell, ring: Cell) -> tuple[float, float, float]:
    """(end to end, cost, acceptance) of one pair of cells."""
    found = split_ratio(
        step_ms(native).value, step_ms(ring).value, accept_length(native).value, accept_length(ring).value
    )
    return found.end_to_end, found.cost, found.acceptance


def kv_dtype(study: Study) -> Table:
    """The step saving by KV precision and context."""
    table = Table(
        "kv_dtype",
        "KV precision: step saving with bf16 and fp8 KV",
        [*SITE_COLUMNS, Column("dtype", "dtype"), Column("kv_dtype", "KV dtype"),
         Column("depth", "d"), Column("new_tokens", "new tokens"), Column("native_step_ms", "native step ms"),
         Column("ring_step_ms", "ring step ms"), Column("step_ratio", "native / ring", 3)],
        header(study, RATIO_NOTE),
    )  # fmt: skip
    for site in sites(study):
        task = main_task(site)
        found = site.group.select(task=task, arm=lambda a: a != "dense") if site.group else []
        pairs = sorted({(c.point.kv_dtype, c.point.dtype) for c in found})
        for kv, dtype in pairs or [("bfloat16", "bfloat16"), ("fp8_e4m3", "bfloat16")]:
            precision = {"kv_dtype": kv, "dtype": dtype}
            for context in contexts(site, task=task, arm=lambda a: a != "dense", **precision):
                depth = main_depth(site, task=task, context_tokens=context, **precision)
                where = {"task": task, "context_tokens": context, "depth": depth, **precision}
                native, ring = (site.cells(arm, **where) for arm in ("native", site.window_arm))
                short = "fp8" if "8" in kv else "bf16"
                table.add(
                    model=site.model, hardware=site.hardware, context_tokens=context, dtype=dtype,
                    kv_dtype=kv,
                    depth=depth, new_tokens=next((c.point.max_new_tokens for c in [*native, *ring]), None),
                    native_step_ms=valued(pooled(native, step_ms)),
                    ring_step_ms=valued(pooled(ring, step_ms)),
                    step_ratio=valued(
                        pooled_ratio(native, ring, step_ms),
                        as_ratio(site.claim("kv_dtype", task, short, "step_speedup_1m", context)),
                    ),
                )  # fmt: skip
    return table


def spread(study: Study) -> Table:
    """How much the step depends on the input: (max - min) / min of the mean step over inputs."""
    table = Table(
        "spread",
        "Content spread of the step over inputs",
        [*SITE_COLUMNS, Column("arm", "arm"), Column("depth", "d"), Column("inputs", "inputs"),
         Column("spread_percent", "spread %", 1)],
        header(study, "Prompts and tasks are inputs; the paper states at most 7 %."),
    )  # fmt: skip
    for site in sites(study):
        arms = site.values("arm") or ["native", "ring"]
        for arm in arms:
            for context in contexts(site, arm=arm, batch=1, probe=None):
                depth = 1 if arm == "dense" else main_depth(site, context_tokens=context)
                where = {"arm": arm, "context_tokens": context, "depth": depth}
                tasks = site.values("task", batch=1, probe=None, **where)
                cells = [cell for task in tasks for cell in site.cells(task=task, **where)]
                used, _ = counted(cells, step_ms)
                means: dict[tuple[object, ...], list[float]] = {}
                for cell in used:
                    key = (cell.point.task, cell.point.seed, prompt_hash(cell))
                    means.setdefault(key, []).append(step_ms(cell).value)
                values = [float(np.mean(v)) for v in means.values()]
                said = claim("table_1", site.paper, "all", "all", "step_content_spread")
                found = Value(None, said, "one input only" if values else "not measured here")
                if len(values) > 1:
                    found = Value(Estimate(100 * (max(values) / min(values) - 1), n=len(values)), said)
                table.add(model=site.model, hardware=site.hardware, context_tokens=context, arm=arm,
                          depth=depth, inputs=len(values), spread_percent=found)  # fmt: skip
    return table
