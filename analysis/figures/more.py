"""Figures beyond the paper's: latency fit, window dose, phases, draft-KV share, acceptance by context."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.estimators import Estimate
from analysis.extras import Phases
from analysis.figures.base import ARM_STYLE, bars, in_full, line, other_depths, panels, tokens
from analysis.study import Pick, Study, accept_length, pooled, step_ms, tpot_ms
from analysis.tables.depth import ArmFit, fits
from analysis.tables.memory import draft_share
from analysis.tables.probes import probed
from analysis.tables.sites import Site, contexts, main_depth, main_task, sites


def _measured(study: Study) -> list[Site]:
    return [site for site in sites(study) if site.group is not None]


def latency_fit(study: Study) -> Figure | None:
    """Step time by gamma with both fits, residuals below; one column a model, its best-covered case."""
    shown = [
        (site, *found[0])
        for site in _measured(study)
        if (found := [f for f in fits(site) if f[2].fit or f[3].fit])
    ]
    if not shown:
        return None
    figure = Figure(figsize=(max(4.8, 3.3 * len(shown)), 4.4))
    grid = figure.add_gridspec(2, len(shown), height_ratios=(3, 1))
    for column, (site, task, context, native, ring) in enumerate(shown):
        top, low = figure.add_subplot(grid[0, column]), figure.add_subplot(grid[1, column])
        for arm in (native, ring):
            _fit_lines(top, low, arm)
        top.set_title(f"{site.model} on {site.hardware}\n{task}, S = {in_full(context)}")
        top.legend()
        low.axhline(0, color="#888888", linewidth=0.8)
        low.set_xlabel("draft forwards gamma")
        if column == 0:
            top.set_ylabel("step (ms)")
            low.set_ylabel("residual (ms)")
        low.set_xlim(top.get_xlim())
    return figure


def _fit_lines(top: Axes, low: Axes, arm: ArmFit) -> None:
    style = ARM_STYLE[arm.arm]
    dots = {"marker": style["marker"], "color": style["color"], "linestyle": "none"}
    top.plot(arm.gammas, arm.step_ms, **dots)
    if arm.fit is None:
        return
    ends = np.array([min(arm.fit.gammas), max(arm.fit.gammas)], dtype=float)
    text = f"{arm.arm}: {arm.fit.slope_ms.value:.3f} gamma + {arm.fit.intercept_ms.value:.2f}"
    top.plot(
        ends, [arm.fit.at(g) for g in ends], color=style["color"], linestyle=style["linestyle"], label=text
    )
    if arm.step is not None:
        top.axvline(arm.step.gamma - 0.5, color="#aaaaaa", linestyle=":", linewidth=1)
    low.plot(
        arm.fit.gammas, arm.fit.residuals_ms, marker=style["marker"], color=style["color"], linestyle="none"
    )


def dose_response(study: Study) -> Figure | None:
    """Acceptance length and TPOT by window, the native draft as a band across."""
    shown = []
    for site in _measured(study):
        task = main_task(site)
        for context in contexts(site, task=task):
            depth = main_depth(site, task=task, context_tokens=context)
            where = {"task": task, "context_tokens": context, "depth": depth}
            windows = site.values("window_tokens", arm=site.window_arm, batch=1, **where)
            if len(windows) > 1:
                shown.append((site, task, context, windows, where))
    if not shown:
        return None
    figure, axes = panels(2 * len(shown), columns=2)
    picks: tuple[tuple[str, Pick], ...] = (("acceptance length", accept_length), ("TPOT (ms)", tpot_ms))
    for i, (site, task, context, windows, where) in enumerate(shown):
        for axis, (label, pick) in zip(axes[2 * i : 2 * i + 2], picks, strict=True):
            means = [
                (w, pooled(site.cells(site.window_arm, window_tokens=w, **where), pick)) for w in windows
            ]
            found = [(w, mean.estimate) for w, mean in means if mean.estimate is not None]
            flags = [mean.flag for _, mean in means]
            line(axis, site.window_arm, [w for w, _ in found], [e for _, e in found],
                 label=_marked(site.window_arm, flags))  # fmt: skip
            mean = pooled(site.cells("native", **where), pick)
            native = mean.estimate
            if native is not None:
                axis.axhline(native.value, color=ARM_STYLE["native"]["color"],
                             label=_marked("native", [mean.flag]))  # fmt: skip
                if native.low == native.low:
                    axis.axhspan(native.low, native.high, color=ARM_STYLE["native"]["color"], alpha=0.12)
            axis.set_xscale("log", base=2)
            axis.set_xticks([w for w, _ in found], [in_full(w) for w, _ in found])
            axis.minorticks_off()
            axis.set(xlabel="window W (tokens)", ylabel=label)
            axis.set_title(
                f"{site.model} on {site.hardware}\n{task}, S = {in_full(context)}, d = {where['depth']}"
            )
            axis.legend()
    return figure


def _marked(arm: str, flags: Iterable[str]) -> str:
    """An arm's name in a legend, with what makes some of its points doubtful."""
    told = sorted({flag for flag in flags if flag})
    return f"{arm} ({', '.join(told)})" if told else arm


_PHASES = (
    ("verify", "#999999", ""),
    ("overhead", "#F0E442", "//"),
    ("draft: index builds", "#D55E00", "xx"),
    ("draft: decode", "#0072B2", ".."),
    ("draft: extend", "#56B4E9", "\\\\"),
    ("unattributed", "#DDDDDD", ""),
)


def _heights(phases: Phases) -> list[float]:
    """Milliseconds in the order of `_PHASES`; a draft whose parts are unknown is all decode."""
    index = phases.draft_index_ms or 0.0
    extend = (phases.draft_extend_ms or 0.0) - phases.parts_ms.get("draft_extend_index", 0.0)
    decode = phases.draft_ms - index - extend
    rest = max(0.0, phases.unattributed_ms)
    return [phases.verify_base_ms, phases.verify_overhead_ms, index, decode, extend, rest]


def decomposition(study: Study) -> Figure | None:
    """Stacked phases of one iteration, native beside the window arm; needs traced records."""
    columns: list[tuple[str, Phases]] = []
    for site in _measured(study):
        for arm in ("native", site.window_arm):
            for one, phases in probed(site, arm, "phases", Phases):
                context, depth, task = one.place
                tasks = "" if task == main_task(site) else f"\n{task}"
                if not one.note:
                    columns.append(
                        (f"{site.model}\n{one.titled(arm)}\nd={depth} {in_full(context)}{tasks}", phases)
                    )
    if not columns:
        return None
    figure, (axis,) = panels(1, height=3.2, width=max(4.6, 0.9 * len(columns)))
    base = np.zeros(len(columns))
    rows = np.array([_heights(phases) for _, phases in columns]).T
    for (label, color, hatch), heights in zip(_PHASES, rows, strict=True):
        if not heights.any():
            continue
        axis.bar(range(len(columns)), heights, bottom=base, label=label, color=color, hatch=hatch,
                 edgecolor="white", width=0.65)  # fmt: skip
        base += heights
    axis.set_xticks(range(len(columns)), [title for title, _ in columns], fontsize=6.5)
    axis.set(ylabel="one decode iteration (ms)", title="Where an iteration's time goes (traced)")
    axis.grid(visible=False, axis="x")
    axis.set_ylim(top=1.25 * float(base.max()))
    axis.legend(ncols=3, loc="upper center")
    return figure


def memory_share(study: Study) -> Figure | None:
    """The draft's share of the KV memory by model and arm, from the pools as allocated."""
    found: dict[tuple[str, str], Estimate] = {}
    for site in _measured(study):
        shares: dict[tuple[int, int, int], dict[str, Estimate]] = {}
        for cell in site.group.cells if site.group else ():
            p, share = cell.point, draft_share(cell).estimate
            if share is not None and cell.verdict.of_point:
                sized = (p.kv_budget_mib or 0, p.context_tokens, cell.record.server.max_running_requests or 0)
                shares.setdefault(sized, {}).setdefault(p.arm, share)
        if not shares:
            continue
        # Arms are compared in pools of one size: the largest that most of them had.
        sized = max(shares, key=lambda key: (len(shares[key]), key))
        size = f"{sized[0]:,} MiB" if sized[0] else f"S = {in_full(sized[1])}"
        for arm, share in shares[sized].items():
            found[f"{site.model} on {site.hardware}\n{size}", arm] = share
    if not found:
        return None
    names = list(dict.fromkeys(name for name, _ in found))
    arms = [arm for arm in ("native", "windowed", "ring") if any((n, arm) in found for n in names)]
    figure, (axis,) = panels(1, width=max(4.6, 1.6 * len(names)))
    width = 0.8 / len(arms)
    hatches = {"native": "", "windowed": "//", "ring": ".."}
    for i, arm in enumerate(arms):
        x = [j + (i - (len(arms) - 1) / 2) * width for j, n in enumerate(names) if (n, arm) in found]
        values = [found[n, arm] for n in names if (n, arm) in found]
        drawn = axis.bar(x, [v.value for v in values], width * 0.92, yerr=bars(values), label=arm,
                         color=ARM_STYLE[arm]["color"], hatch=hatches[arm], edgecolor="white")  # fmt: skip
        axis.bar_label(drawn, [f"{v.value:.3g} %" for v in values], fontsize=6.5, padding=2)
    axis.set_xticks(range(len(names)), names)
    axis.set(ylabel="draft share of KV memory (%)", title="KV memory that the draft holds")
    axis.grid(visible=False, axis="x")
    axis.set_ylim(top=1.15 * max(v.value for v in found.values()))
    axis.legend()
    return figure


def step_by_context(study: Study) -> Figure | None:
    """Step time against context for every arm, dense included."""
    return _by_context(study, ("dense", "native", "windowed", "ring"), step_ms, "step (ms)", bottom=0)


def acceptance_by_context(study: Study) -> Figure | None:
    """Acceptance length against context for every speculative arm."""
    return _by_context(study, ("native", "windowed", "ring"), accept_length, "acceptance length", bottom=1)


def _by_context(study: Study, arms: tuple[str, ...], pick: Pick, label: str, bottom: float) -> Figure | None:
    shown = []
    for site in _measured(study):
        task, depth = main_task(site), main_depth(site)
        lines: dict[str, list[tuple[int, Estimate]]] = {}
        flags: dict[str, list[str]] = {}
        for arm in arms:
            for context in contexts(site, task=task, arm=arm):
                where = {"task": task, "context_tokens": context, "depth": 1 if arm == "dense" else depth}
                mean = pooled(site.cells(arm, **where), pick)
                if mean.estimate is not None:
                    lines.setdefault(arm, []).append((context, mean.estimate))
                    flags.setdefault(arm, []).append(mean.flag)
        if lines:
            shown.append((site, task, depth, lines, flags))
    if not shown:
        return None
    figure, axes = panels(len(shown))
    for axis, (site, task, depth, lines, flags) in zip(axes, shown, strict=True):
        for arm, found in lines.items():
            line(axis, arm, [c for c, _ in found], [e for _, e in found], label=_marked(arm, flags[arm]))
        tokens(axis, sorted({c for found in lines.values() for c, _ in found}))
        elsewhere = other_depths(site, task, depth)
        axis.set_title(f"{site.model} on {site.hardware}\n{task}, d = {depth}{elsewhere}")
        axis.set_ylim(bottom=bottom)
        axis.legend()
    axes[0].set_ylabel(label)
    return figure
