"""Figures 2 to 5 of the paper."""

from __future__ import annotations

from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.estimators import Estimate
from analysis.figures.base import ARM_STYLE, bars, in_full, line, other_depths, panels, tokens
from analysis.paper import MODELS, claim
from analysis.study import Study, pooled_ratio, step_ms
from analysis.tables.acceptance import positions
from analysis.tables.pareto import RatePoint
from analysis.tables.pareto import panels as rate_panels
from analysis.tables.sites import Site, contexts, main_depth, main_task, sites


def _measured(study: Study) -> list[Site]:
    return [site for site in sites(study) if site.group is not None]


def figure_2(study: Study) -> Figure | None:
    """alpha_j by draft position, native against the window arm, one panel a model at its longest context."""
    shown = []
    for site in _measured(study):
        task = main_task(site)
        for context in reversed(contexts(site, task=task, arm=lambda a: a != "dense")):
            depth = main_depth(site, task=task, context_tokens=context)
            rows = {
                arm: positions(site.cells(arm, task=task, context_tokens=context, depth=depth))
                for arm in ("native", site.window_arm)
            }
            if any(found for found, _, _ in rows.values()):
                shown.append((site, task, context, depth, rows))
                break
    if not shown:
        return None
    figure, axes = panels(len(shown))
    for axis, (site, task, context, depth, rows) in zip(axes, shown, strict=True):
        for shift, (arm, (found, _, flag)) in enumerate(rows.items()):
            known = [r for r in found if r.alpha is not None and r.low is not None and r.high is not None]
            estimates = [Estimate(r.alpha or 0.0, r.low or 0.0, r.high or 0.0) for r in known]
            places = [r.position + 0.1 * (shift - 0.5) for r in known]
            line(axis, arm, places, estimates, label=f"{arm} ({flag})" if flag else arm)
        axis.set(xlabel="draft position j", ylim=(0, 1.03), xticks=range(1, depth))
        axis.set_title(f"{site.model} on {site.hardware}, S = {in_full(context)}\n{task}, d = {depth}")
        axis.legend(loc="lower left")
    axes[0].set_ylabel("conditional acceptance\n(95 % Wilson over steps)")
    return figure


_PAPER_MARKERS = ("v", "P", "X")


def figure_3(study: Study) -> Figure | None:
    """step native / step window - 1 against context; the paper's two contexts as open markers."""
    figure, (axis,) = panels(1, height=3.6)
    used: set[int] = set()
    drawn = False
    looks = (("#0072B2", "D", "-"), ("#D55E00", "o", "--"), ("#009E73", "^", "-."), ("#CC79A7", "s", ":"))
    for (color, marker, style), site in zip(cycle(looks), _measured(study), strict=False):
        task, depth = main_task(site), main_depth(site)
        x: list[int] = []
        found: list[Estimate] = []
        for context in contexts(site, task=task):
            where = {"task": task, "context_tokens": context, "depth": depth}
            ratio = pooled_ratio(
                site.cells("native", **where), site.cells(site.window_arm, **where), step_ms
            ).estimate
            if ratio is not None:
                x.append(context)
                found.append(Estimate(100 * (ratio.value - 1), 100 * (ratio.low - 1), 100 * (ratio.high - 1)))
        elsewhere = other_depths(site, task, depth)
        if x:
            drawn = True
            used |= set(x)
            axis.errorbar(
                x, [e.value for e in found], yerr=bars(found), color=color, marker=marker, linestyle=style,
                label=f"{site.model} on {site.hardware}, {site.window_arm}, d = {depth}{elsewhere}",
            )  # fmt: skip
    if not drawn:
        return None
    for marker, (name, title) in zip(_PAPER_MARKERS, MODELS.items(), strict=True):
        ends = [
            claim("figure_3", name, "niah_multiquery_enum", "windowed_over_native", f"step_speedup_{end}")
            for end in ("261k", "1m")
        ]
        y = [said.low for said in ends if said is not None]
        if len(y) == 2:
            axis.plot([261_000, 1_040_000], y, marker=marker, linestyle="none", markerfacecolor="none",
                      color="#888888", label=f"paper: {title}")  # fmt: skip
            used |= {261_000, 1_040_000}
    tokens(axis, sorted(used))
    axis.axhline(0, color="#888888", linewidth=0.8)
    axis.set_ylabel("step native / window arm - 1 (%)")
    axis.set_title("The saving of a step against context")
    # Below the axis: the paper's markers fill the corners.
    figure.legend(loc="outside lower center", ncols=2, fontsize=6.5)
    return figure


def figure_4(study: Study) -> Figure | None:
    """Throughput against latency on one GPU: one panel a model and input."""
    return _frontiers(study, tp=1)


def figure_5(study: Study) -> Figure | None:
    """The same over two GPUs."""
    return _frontiers(study, tp=2)


def _frontiers(study: Study, tp: int) -> Figure | None:
    shown: list[tuple[Site, str, int, list[RatePoint]]] = []
    for site in _measured(study):
        found = rate_panels(site, tp)
        for (task, context, _), rates in found.items():
            if len({r.batch for r in rates if r.user.known}) > 1:
                shown.append((site, task, context, rates))
    if not shown:
        return None
    figure, axes = panels(len(shown), columns=2 if len(shown) in (2, 4, 6) else 3)
    for axis, (site, task, context, rates) in zip(axes, shown, strict=True):
        _frontier(axis, rates)
        axis.set(xlabel="tokens/s per user", ylabel="tokens/s per GPU")
        axis.set_title(f"{site.model} on {site.hardware}, TP{tp}\n{task}, S = {in_full(context)}")
    # Below the panels: within them it hides points.
    known = {
        text: line for axis in axes for line, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if any(not rate.on_frontier for *_, rates in shown for rate in rates if rate.user == rate.user):
        hollow = Line2D([], [], linestyle="none", marker="o", color="#555555", markerfacecolor="none")
        known["hollow: not on its arm's frontier"] = hollow
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=3, fontsize=6.5)
    return figure


_ASIDE = {"linestyle": "none", "markerfacecolor": "none", "alpha": 0.45, "markersize": 3.5}


def _frontier(axis: Axes, rates: list[RatePoint]) -> None:
    for arm in dict.fromkeys(rate.arm for rate in rates):
        style = ARM_STYLE[arm]
        mine = [r for r in rates if r.arm == arm and r.user.known]
        best = sorted((r for r in mine if r.on_frontier), key=lambda r: r.user.value)
        axis.plot([r.user.value for r in best], [r.gpu.value for r in best], **style, label=arm)
        rest = [r for r in mine if not r.on_frontier]
        axis.plot([r.user.value for r in rest], [r.gpu.value for r in rest], **style | _ASIDE)
        for rate in best:
            axis.annotate(f"B{rate.batch}", (rate.user.value, rate.gpu.value), textcoords="offset points",
                          xytext=(3, 3), fontsize=6, color=style["color"])  # fmt: skip
    # The labels stand above and to the right of their markers.
    axis.set_xlim(0, 1.15 * axis.get_xlim()[1])
    axis.set_ylim(0, 1.1 * axis.get_ylim()[1])
