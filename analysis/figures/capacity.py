"""How many requests fit beside each other, arm by arm."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.figures.base import ARM_STYLE, in_full, panels
from analysis.study import Study
from analysis.tables.memory import LargestBatch, comparable, largest_batches
from analysis.tables.sites import sites
from harness.points import ARMS

_HATCHES = {"dense": "", "native": "", "windowed": "//", "ring": ".."}


def _order(found: LargestBatch) -> tuple[int, int]:
    return ARMS.index(found.point.arm), found.point.depth


def batches(study: Study) -> Figure | None:
    """Bars of the largest batch that ran; one panel for what fits into the same memory."""
    shown: dict[tuple[object, ...], list[LargestBatch]] = {}
    for site in sites(study):
        for found in largest_batches(site.group) if site.group else []:
            key = (f"{site.model} on {site.hardware}", *comparable(found.point))
            shown.setdefault(key, []).append(found)
    if not shown:
        return None
    figure, axes = panels(len(shown), columns=2)
    for axis, ((name, *_), swept) in zip(axes, shown.items(), strict=True):
        ordered = sorted(swept, key=_order)
        labels = [
            f.point.arm if f.point.arm == "dense" else f"{f.point.arm}\nd = {f.point.depth}" for f in ordered
        ]
        bars = axis.bar(
            range(len(ordered)),
            [f.ran for f in ordered],
            0.7,
            color=[ARM_STYLE[f.point.arm]["color"] for f in ordered],
            hatch=[_HATCHES[f.point.arm] for f in ordered],
            edgecolor="white",
        )
        axis.bar_label(bars, [str(f.ran) if f.failed else f"≥ {f.ran}" for f in ordered], padding=2)
        axis.set_xticks(range(len(ordered)), labels)
        point = swept[0].point
        where = f"{point.kv_budget_mib} MiB of KV" if point.kv_budget_mib else "the server's memory"
        axis.set_title(
            f"{name}, TP{point.tp}\nS = {in_full(point.context_tokens)} + {point.max_new_tokens}, {where}"
        )
        axis.set_ylim(0, 1.2 * max(1, *(f.ran for f in ordered)))
        axis.grid(visible=False, axis="x")
        axis.set_ylabel("requests that fit together")
    return figure
