"""Drawing and saving: one style, three files a figure, the same bytes from the same records."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

# Only files are drawn, whatever the environment asks for; matplotlib cannot be imported with an unknown name.
os.environ["MPLBACKEND"] = "Agg"

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.estimators import Estimate
from analysis.files import write_bytes
from analysis.tables.sites import Site, contexts, main_depth

ARM_STYLE: dict[str, dict[str, Any]] = {
    "dense": {"color": "#555555", "marker": "s", "linestyle": ":"},
    "native": {"color": "#D55E00", "marker": "o", "linestyle": "-"},
    "windowed": {"color": "#56B4E9", "marker": "^", "linestyle": "--"},
    "ring": {"color": "#0072B2", "marker": "D", "linestyle": "-."},
}
FORMATS = ("png", "svg", "pdf")
# Without dates and program versions, bytes depend on the data only.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class Drawn:
    """What became of a figure: its files' common stem, or a note on why there is nothing to draw."""

    name: str
    stem: Path | None = None
    note: str = ""

    @property
    def text(self) -> str:
        """Its files, or the note."""
        return self.note or f"{self.stem}.{', .'.join(FORMATS)}"


@contextmanager
def styled() -> Iterator[None]:
    """The project's style sheet for the duration of a block."""
    with (
        resources.as_file(resources.files(__package__).joinpath("style.mplstyle")) as sheet,
        plt.style.context(["default", str(sheet)]),
    ):
        yield


def close(figure: Figure) -> None:
    """Free a figure that was rendered."""
    plt.close(figure)


def panels(
    count: int, columns: int = 3, height: float = 2.7, width: float = 3.1
) -> tuple[Figure, list[Axes]]:
    """A grid of at most `columns` panels a row; unused ones are removed."""
    columns = min(columns, max(count, 1))
    rows = -(-count // columns)
    # One panel alone needs room for its title.
    size = (max(width * columns, 4.6), height * rows + 0.4)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    flat = [axis for row in axes for axis in row]
    for axis in flat[count:]:
        axis.remove()
    return figure, flat[:count]


def bars(estimates: Sequence[Estimate]) -> list[list[float]]:
    """[[below], [above]] of the intervals, 0 where there is none."""
    low = [max(0.0, e.value - e.low) if e.low == e.low else 0.0 for e in estimates]
    high = [max(0.0, e.high - e.value) if e.high == e.high else 0.0 for e in estimates]
    return [low, high]


def other_depths(site: Site, task: str, depth: int) -> str:
    """What a line over contexts at one depth leaves out, for its label: contexts of other depths alone."""
    left_out = []
    for context in contexts(site, task=task, batch=1, probe=None, arm=lambda arm: arm != "dense"):
        depths = site.values("depth", context_tokens=context, task=task, batch=1, probe=None)
        if depth not in depths:
            here = main_depth(site, task=task, context_tokens=context)
            left_out.append(f"{in_full(context)} (d = {here})")
    return f"; without S = {', '.join(left_out)}" if left_out else ""


def line(axis: Axes, arm: str, x: Sequence[float], estimates: Sequence[Estimate], **more: Any) -> None:
    """An arm's line with error bars."""
    axis.errorbar(
        x, [e.value for e in estimates], yerr=bars(estimates), elinewidth=0.9,
        **({"label": arm} | ARM_STYLE[arm] | more),
    )  # fmt: skip


def tokens(axis: Axes, values: Sequence[int]) -> None:
    """A logarithmic context axis with its measured lengths as ticks."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(values), [in_full(v) for v in values])
    axis.minorticks_off()
    if len(values) == 1:
        axis.set_xlim(values[0] / 2, values[0] * 2)
    axis.set_xlabel("context S (tokens)")


def in_full(count: int) -> str:
    """1040000 -> 1,040,000, as in tables: a K of 1000 for one length would be one of 1024 for another."""
    return f"{count:,}"


def render(figure: Figure, kind: str) -> bytes:
    """The figure's bytes in a format."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=_METADATA[kind])
    return buffer.getvalue()


def save(figure: Figure, name: str, folder: Path) -> Drawn:
    """Write all formats and close the figure."""
    try:
        figure.draw_without_rendering()  # lays it out
        figure.set_layout_engine("none")  # once for all formats: most of the time went there
        for kind in FORMATS:
            write_bytes(folder / f"{name}.{kind}", render(figure, kind))
    finally:
        plt.close(figure)
    return Drawn(name, folder / name)
