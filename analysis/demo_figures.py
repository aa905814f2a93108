"""The demo's two figures: acceptance by draft position, step time against context."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from analysis.acceptance import PositionAcceptance
from analysis.estimators import Estimate

# Okabe-Ito colours, told apart in grey by marker and line style too.
STYLES: dict[str, dict[str, Any]] = {
    "dense": {"color": "#000000", "marker": "s", "linestyle": ":"},
    "native": {"color": "#D55E00", "marker": "o", "linestyle": "-"},
    "windowed": {"color": "#56B4E9", "marker": "^", "linestyle": "--"},
    "ring": {"color": "#0072B2", "marker": "D", "linestyle": "-."},
}


def per_position(rows_by_arm: Mapping[str, list[PositionAcceptance]], title: str, folder: Path) -> None:
    """alpha_j with Wilson intervals for each speculative arm."""
    figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    for shift, (arm, rows) in enumerate(rows_by_arm.items()):
        known = [row for row in rows if row.alpha is not None]
        x = [row.position + 0.08 * (shift - 1) for row in known]
        y = [row.alpha or 0.0 for row in known]
        low = [a - (row.low or 0.0) for a, row in zip(y, known, strict=True)]
        high = [(row.high or 0.0) - a for a, row in zip(y, known, strict=True)]
        axes.errorbar(x, y, yerr=[low, high], label=arm, capsize=2, markersize=4, linewidth=1, **STYLES[arm])
    axes.set(xlabel="draft position j", ylabel="conditional acceptance", ylim=(0, 1.02))
    axes.set_title(f"{title}: acceptance by draft position (95 % Wilson over steps)", fontsize=9)
    axes.legend(fontsize=8)
    _save(figure, folder / "per_position_acceptance")


def step_by_context(steps: Mapping[str, Mapping[int, Estimate]], title: str, folder: Path) -> None:
    """T_iter against S for each arm."""
    figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    for arm, by_context in steps.items():
        x = list(by_context)
        y = [estimate.value for estimate in by_context.values()]
        low = [max(0.0, e.value - e.low) if e.low == e.low else 0.0 for e in by_context.values()]
        high = [max(0.0, e.high - e.value) if e.high == e.high else 0.0 for e in by_context.values()]
        axes.errorbar(x, y, yerr=[low, high], label=arm, capsize=2, markersize=4, linewidth=1, **STYLES[arm])
    axes.set(xlabel="context S (tokens)", ylabel="step time (ms)")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{title}: one decode iteration against context", fontsize=9)
    axes.legend(fontsize=8)
    _save(figure, folder / "step_time_by_context")


def _save(figure: Figure, stem: Path) -> None:
    for ending in ("png", "svg"):
        # No date in the file: the same records give the same bytes.
        metadata: dict[str, Any] | None = {"Date": None} if ending == "svg" else None
        with mpl.rc_context({"svg.hashsalt": "windowed-mtp"}):
            figure.savefig(stem.with_suffix(f".{ending}"), dpi=150, metadata=metadata)
    plt.close(figure)
