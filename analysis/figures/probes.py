"""Figures of the probes: attention mass against distance, and the margins of the proposals that flip."""

from __future__ import annotations

import math
from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.acceptance import wilson
from analysis.estimators import Estimate
from analysis.extras import AttentionMass, DecisionProbe
from analysis.figures.base import bars, in_full, panels
from analysis.study import Study
from analysis.tables.probes import Chosen, T, probed
from analysis.tables.sites import Site, sites

_NEAR, _FAR, _SINK, _FLIP = "#0072B2", "#D55E00", "#009E73", "#D55E00"


def _records(study: Study, key: str, kind: type[T]) -> Iterator[tuple[Site, Chosen, T]]:
    for site in sites(study):
        for one, extra in probed(site, "native", key, kind):
            if not one.note:
                yield site, one, extra


def _title(site: Site, one: Chosen) -> str:
    context, depth, task = one.place
    where = one.titled(f"{task}, S = {in_full(context)}, d = {depth}")
    return f"{site.model} on {site.hardware}\n{where}"


def attention_by_distance(study: Study) -> Figure | None:
    """Mass of the native draft's attention by distance from the query, doubling bins, the sink apart."""
    shown = [found for found in _records(study, "attention_mass", AttentionMass) if found[2].distance_mass]
    if not shown:
        return None
    figure, axes = panels(len(shown), columns=2, width=4.6)
    for axis, (site, cell, mass) in zip(axes, shown, strict=True):
        _draw_distances(axis, mass)
        axis.set_title(_title(site, cell))
    axes[0].set_ylabel("attention mass (%)")
    return figure


def _draw_distances(axis: Axes, mass: AttentionMass) -> None:
    heights = [100 * value for value in mass.distance_mass]
    window = mass.window_tokens or 0
    # Bin 0 is the query's own key; bin i > 0 holds distances 2^(i-1) .. 2^i - 1.
    starts = [0, *(2**i for i in range(len(heights) - 1))]
    colors = [_NEAR if start < window else _FAR for start in starts]
    axis.bar(range(len(heights)), heights, color=colors, width=0.9)
    if mass.sink_mass is not None and mass.sink_tokens:
        axis.bar([len(heights) + 0.5], [100 * mass.sink_mass], color=_SINK, width=0.9, hatch="//",
                 edgecolor="white")  # fmt: skip
    if window:
        edge = math.log2(window) + 0.5
        axis.axvline(edge, color="#555555", linestyle="--", linewidth=1)
        inside = f"in window {100 * mass.in_window_mass:.1f} %"
        axis.text(edge, 1.0, f" W = {in_full(window)}: {inside}", transform=axis.get_xaxis_transform(),
                  va="top", fontsize=6.5)  # fmt: skip
    ticks = list(range(0, len(heights), 2))
    labels = [in_full(starts[i]) for i in ticks]
    if mass.sink_tokens:
        ticks.append(len(heights) + 0.5)  # type: ignore[arg-type]
        labels.append(f"sink\n{mass.sink_tokens}")
    axis.set_xticks(ticks, labels)
    axis.grid(visible=False, axis="x")
    axis.set_xlabel("distance from the query (tokens, from)")


def decision_margins(study: Study) -> Figure | None:
    """Margins of all proposals and of those that a windowed read changes; agreement along the chain."""
    shown = [found for found in _records(study, "decision_probe", DecisionProbe) if found[2].margin_counts]
    if not shown:
        return None
    figure, axes = panels(2 * len(shown), columns=2, width=3.6)
    for i, (site, cell, probe) in enumerate(shown):
        margins, chain = axes[2 * i : 2 * i + 2]
        _draw_margins(margins, probe)
        margins.set_title(_title(site, cell))
        _draw_chain(chain, probe)
        chain.set_title(f"{probe.agreeing_steps} of {probe.steps} proposals agree")
    return figure


def _draw_margins(axis: Axes, probe: DecisionProbe) -> None:
    flips = sum(probe.margin_counts_at_flip)
    width = 0.42
    for offset, counts, color, hatch, label in (
        (-width / 2, probe.margin_counts, "#999999", "", f"all {probe.steps} steps"),
        (width / 2, probe.margin_counts_at_flip, _FLIP, "//", f"{flips} flips"),
    ):
        total = max(sum(counts), 1)
        axis.bar([i + offset for i in range(len(counts))], [100 * c / total for c in counts], width,
                 color=color, hatch=hatch, edgecolor="white", label=label)  # fmt: skip
    axis.set_xticks(range(len(probe.margin_edges_logits)), [f"{e:g}" for e in probe.margin_edges_logits])
    axis.grid(visible=False, axis="x")
    axis.set(xlabel="top-1 minus top-2 logit of the full read (from)", ylabel="share of steps (%)")
    axis.legend()


def _draw_chain(axis: Axes, probe: DecisionProbe) -> None:
    found = []
    for one in probe.by_position:
        low, high = wilson(one.agreeing_steps, one.steps)
        found.append(Estimate(100 * one.agreeing_steps / one.steps, 100 * low, 100 * high, one.steps))
    places = [one.position for one in probe.by_position]
    axis.errorbar(places, [e.value for e in found], yerr=bars(found), color=_NEAR, marker="o", elinewidth=0.9)
    axis.set_xticks(places)
    axis.set_ylim(top=101)
    axis.set(xlabel="place in the draft chain", ylabel="same top-1 (%)")
