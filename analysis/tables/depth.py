"""Draft depth and draft backend: tables 3, 5 and 6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.estimators import Estimate
from analysis.extras import Phases, read_extra
from analysis.fit import LatencyFit, TimeStep, decompose, detect_step, fit_after_step
from analysis.paper import Claim
from analysis.study import (
    Cell,
    Study,
    accept_length,
    of_common_prompts,
    pooled,
    pooled_difference,
    pooled_ratio,
    step_ms,
    tpot_ms,
    why_missing,
)
from analysis.tables.base import RATIO_NOTE, SITE_COLUMNS, Column, Table, Value, valued
from analysis.tables.heading import header
from analysis.tables.sites import ANY, Site, contexts, main_depth, main_task, sites

_QWEN_TASKS = ["niah_multiquery_enum", "cwe", "longbench_code_qa"]
_PAPER_TASKS = {
    "qwen3.6-35b-a3b": _QWEN_TASKS,
    "qwen3.5-122b-a10b": _QWEN_TASKS,
    "nemotron-3-super-120b-a12b": ["niah_multiquery_enum", "fwe_enum"],
}
_PAPER_ARM = {"native": "native", "ring": "windowed", "windowed": "windowed"}


def table_3(study: Study) -> Table:
    """Each arm at its own best depth (least TPOT); depths that do not fit are listed."""
    table = Table(
        "table_3",
        "Table 3: every arm at its best depth",
        [*SITE_COLUMNS, Column("task", "input"), Column("native_tpot_ms", "native TPOT ms"),
         Column("native_depth", "native best d"), Column("ring_tpot_ms", "ring TPOT ms"),
         Column("ring_depth", "ring best d"), Column("ratio", "native / ring", 3),
         Column("depths", "depths tried"), Column("missing", "without a value")],
        header(study, RATIO_NOTE, "Best depth: the least TPOT among the depths measured."),
    )  # fmt: skip
    for site in sites(study):
        arms = ("native", site.window_arm)
        alone = {"arm": arms, "batch": 1, "probe": None}
        for task in site.values("task", **alone) or _PAPER_TASKS.get(site.paper or "", []):
            for context in contexts(site, task=task, **alone):
                _best_depth_row(table, site, task, context)
    return table


def _best_depth_row(table: Table, site: Site, task: str, context: int) -> None:
    arms = ("native", site.window_arm)
    tried = site.values("depth", arm=arms, batch=1, probe=None, task=task, context_tokens=context)
    best: dict[str, tuple[int, list[Cell]]] = {}
    measured: dict[str, list[Cell]] = {}
    missing = []
    for arm in arms:
        found = []
        sets = [site.cells(arm, task=task, context_tokens=context, depth=depth) for depth in tried]
        alike = of_common_prompts(sets, tpot_ms)
        measured[arm] = [cell for cells in sets for cell in cells]  # of none that counts they say why
        for depth, every, cells in zip(tried, sets, alike, strict=True):
            mean = pooled(cells, tpot_ms)
            if mean.estimate is not None:
                # A looping output's TPOT is too good: it stands only where no other depth has one.
                found.append((bool(mean.flag), mean.estimate.value, depth, cells))
            elif every or every.why:
                missing.append(f"{arm} d={depth}: {why_missing(every)}")
        if found:
            *_, depth, cells = min(found, key=lambda f: f[:3])
            best[arm] = depth, cells
    native, ring = best.get("native"), best.get(site.window_arm)
    said = site.claim("table_3", task, "windowed_over_native", "best_depth_ratio", context)
    table.add(
        model=site.model, hardware=site.hardware, context_tokens=context, task=task,
        native_tpot_ms=valued(pooled(native[1] if native else measured["native"], tpot_ms)),
        native_depth=_depth(native, None),
        ring_tpot_ms=valued(pooled(ring[1] if ring else measured[site.window_arm], tpot_ms)),
        ring_depth=_depth(ring, site.claim("table_3", task, "windowed", "best_depth", context)),
        ratio=valued(pooled_ratio(native[1] if native else [], ring[1] if ring else [], tpot_ms), said),
        depths=", ".join(map(str, tried)), missing="; ".join(missing),
    )  # fmt: skip


def _depth(best: tuple[int, list[Cell]] | None, said: Claim | None) -> str:
    text = str(best[0]) if best else "not measured"
    return f"{text} (paper {said.text})" if said else text


def table_5(study: Study) -> Table:
    """Is the draft backend the confound? Arms by backend, with the draft-extend time where it was traced."""
    table = Table(
        "table_5",
        "Table 5: draft backend ablation",
        [*SITE_COLUMNS, Column("task", "input"), Column("depth", "d"), Column("arm", "arm"),
         Column("backend", "draft backend"), Column("step_ms", "step ms"), Column("tpot_ms", "TPOT ms"),
         Column("accept_length", "AL"), Column("draft_extend_ms", "draft extend ms"),
         Column("extend_ratio", "extend / native FlashInfer")],
        header(study),
    )  # fmt: skip
    for site in sites(study):
        if site.group is None:
            said = site.claim(
                "table_5", "cwe", "native_triton_over_native_flashinfer", "draft_extend_ratio", 1_040_000
            )
            if said:
                table.add(
                    model=site.model, hardware=site.hardware, context_tokens=1_040_000, task="cwe",
                    depth=5, arm="native", backend="triton", extend_ratio=Value(None, said),
                )  # fmt: skip
            continue
        tasks = site.values("task")
        task = "cwe" if "cwe" in tasks else main_task(site)
        depths = site.values("depth", task=task)
        depth = 5 if 5 in depths else main_depth(site, task=task)
        for context in contexts(site, task=task, arm=lambda a: a != "dense"):
            _backend_rows(table, site, task, context, depth)
    return table


def _backend_rows(table: Table, site: Site, task: str, context: int, depth: int) -> None:
    where = {"task": task, "context_tokens": context, "depth": depth}
    extends: dict[tuple[str, str], float] = {}
    rows = []
    for arm in ("native", site.window_arm):
        for backend in site.values("draft_backend", arm=arm, **where):
            both = site.cells(arm, draft_backend=backend, probe=ANY, **where)
            plain = [c for c in both if c.point.probe is None]
            traced = [p for c in both if c.verdict.valid and (p := read_extra(c.record, "phases", Phases))]
            times = [p.draft_extend_ms for p in traced if p.draft_extend_ms is not None]
            if times:
                extends[arm, backend] = sum(times) / len(times)
            rows.append((arm, backend, plain))
    base = extends.get(("native", "flashinfer"))
    for arm, backend, cells in rows:
        extend = extends.get((arm, backend))
        said = None
        if (arm, backend) == ("native", "triton"):
            name = "native_triton_over_native_flashinfer"
            said = site.claim("table_5", task, name, "draft_extend_ratio", context)
        table.add(
            model=site.model, hardware=site.hardware, context_tokens=context, task=task, depth=depth,
            arm=arm, backend=backend, step_ms=valued(pooled(cells, step_ms)),
            tpot_ms=valued(pooled(cells, tpot_ms)), accept_length=valued(pooled(cells, accept_length)),
            draft_extend_ms=Value(Estimate(extend) if extend is not None else None, note="not traced"),
            extend_ratio=Value(
                Estimate(extend / base) if extend is not None and base else None, said, note="not traced"
            ),
        )  # fmt: skip


# -- table 6 ---------------------------------------------------------------------------------------------


MIN_DEPTHS = 3
"""Any two points lie on a line: its slope would look exact and mean nothing."""


@dataclass(frozen=True)
class ArmFit:
    """Mean step times of an arm by gamma, the detected one-time step, and the fit after it."""

    arm: str
    gammas: tuple[int, ...]
    step_ms: tuple[float, ...]
    step: TimeStep | None
    fit: LatencyFit | None


def arm_fit(site: Site, arm: str, task: str, context: int, common: TimeStep | None = None) -> ArmFit:
    """Fit one arm. `common`: a step found on another arm, used where this one shows none itself, since the
    verify kernel is the same in all arms."""
    depths = site.values("depth", task=task, context_tokens=context, arm=arm)
    sets = [site.cells(arm, task=task, context_tokens=context, depth=depth) for depth in depths]
    found: list[tuple[int, float]] = []
    for depth, cells in zip(depths, of_common_prompts(sets, step_ms), strict=True):
        mean = pooled(cells, step_ms)
        if mean.estimate is not None:
            found.append((depth - 1, mean.estimate.value))
    gammas, times = [g for g, _ in found], [t for _, t in found]
    step = detect_step(gammas, times) or common
    after = [g for g in gammas if step is None or g >= step.gamma]
    fit = fit_after_step(gammas, times, step) if len(after) >= MIN_DEPTHS else None
    return ArmFit(arm, tuple(gammas), tuple(times), step, fit)


def fits(site: Site) -> list[tuple[str, int, ArmFit, ArmFit]]:
    """(task, context, native, window arm) wherever one arm has two depths or more; most depths first."""
    out = []
    for task in site.values("task"):
        for context in contexts(site, task=task, arm=lambda a: a != "dense"):
            native = arm_fit(site, "native", task, context)
            ring = arm_fit(site, site.window_arm, task, context, common=native.step)
            if native.step is None and ring.step is not None:
                native = arm_fit(site, "native", task, context, common=ring.step)
            if max(len(native.gammas), len(ring.gammas)) >= 2:
                out.append((task, context, native, ring))
    return sorted(out, key=lambda f: -len(f[2].gammas))


def table_6(study: Study) -> Table:
    """The latency fit of both arms, and what the drops in slope and intercept explain."""
    table = Table(
        "table_6",
        "Table 6: latency fit, step = gamma x t_fwd + c",
        [*SITE_COLUMNS, Column("task", "input"), Column("arm", "arm"), Column("gammas", "gamma fitted"),
         Column("slope_ms", "t_fwd ms", 3), Column("intercept_ms", "c ms", 3), Column("r_squared", "R2", 4),
         Column("one_time_step", "one-time step"), Column("slope_drop_percent", "slope drop %", 1),
         Column("intercept_drop_ms", "c drop ms"), Column("predicted_saving_ms", "saving by fit, ms"),
         Column("measured_saving_ms", "saving measured, ms")],
        header(study, "A one-time step is believed where BIC falls by more than 10; the fit is after it. "
                      "Intervals: Student's t over the fitted points, 3 at least."),
    )  # fmt: skip
    for site in sites(study):
        found = fits(site)
        if not found:
            task = main_task(site)
            context = contexts(site)[0]
            for arm in ("native", site.window_arm):
                table.add(model=site.model, hardware=site.hardware, context_tokens=context, task=task,
                          arm=arm, **_fit_values(site, task, context, arm, None))  # fmt: skip
        for task, context, native, ring in found:
            for fitted in (native, ring):
                drops: dict[str, Any] = {}
                if fitted is ring and native.fit and ring.fit:
                    drops = _drops(site, task, context, native, ring)
                shown = _fit_values(site, task, context, fitted.arm, fitted)
                table.add(model=site.model, hardware=site.hardware, context_tokens=context, task=task,
                          arm=fitted.arm, **shown, **drops)  # fmt: skip
    return table


def _fit_values(site: Site, task: str, context: int, arm: str, fitted: ArmFit | None) -> dict[str, Any]:
    fit = fitted.fit if fitted else None
    r_squared = Estimate(fit.r_squared, n=len(fit.gammas)) if fit else None
    note = (
        ""
        if fitted is None
        else f"{MIN_DEPTHS} depths are needed" + (" after the step" if fitted.step else "")
    )
    return {
        "gammas": ", ".join(map(str, fit.gammas)) if fit else "",
        "slope_ms": Value(
            fit.slope_ms if fit else None,
            site.claim("table_6", task, _PAPER_ARM[arm], "draft_forward_slope", context),
            note,
        ),
        "intercept_ms": Value(fit.intercept_ms if fit else None, note=note),
        "r_squared": Value(r_squared, site.claim("table_6", task, "all", "r_squared", context), note),
        "one_time_step": _step_text(fitted.step, fitted.gammas) if fitted else "",
    }


def _step_text(step: TimeStep | None, gammas: Sequence[int]) -> str:
    if step is not None:
        return f"{step.jump_ms:+.2f} ms from gamma {step.gamma} (BIC {step.bic_gain:.0f})"
    return "none found" if len(gammas) >= 5 else "needs 5 depths"


def _drops(site: Site, task: str, context: int, native: ArmFit, ring: ArmFit) -> dict[str, Any]:
    assert native.fit and ring.fit
    common = sorted(set(native.fit.gammas) & set(ring.fit.gammas))
    gamma = 6 if 6 in common or not common else common[-1]
    where = {"task": task, "context_tokens": context, "depth": gamma + 1}
    both = pooled_difference(site.cells("native", **where), site.cells(site.window_arm, **where), step_ms)
    measured = both.estimate.value if both.estimate else float("nan")
    split = decompose(native.fit, ring.fit, gamma, measured)
    arms = "windowed_over_native"
    return {
        "slope_drop_percent": Value(
            Estimate(split.slope_drop_percent), site.claim("table_6", task, arms, "slope_drop", context)
        ),
        "intercept_drop_ms": Value(
            Estimate(split.intercept_drop_ms), site.claim("table_6", task, arms, "intercept_drop", context)
        ),
        "predicted_saving_ms": Value(Estimate(split.predicted_saving_ms)),
        "measured_saving_ms": Value(Estimate(split.measured_saving_ms), note="not measured at this gamma"),
    }
