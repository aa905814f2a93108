"""The paper's figures 2 to 5 and more, from records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.files import remove
from harness.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from analysis.figures.base import Drawn
    from analysis.study import Study

# name -> what it needs, said where it is missing
FIGURES: dict[str, str] = {
    "2": "replies with accept histograms",
    "3": "native and ring on the same context",
    "4": "two batch sizes at TP1",
    "5": "two batch sizes at TP2",
    "fit": "three depths of an arm",
    "dose": "two windows",
    "decomposition": "traced records",
    "batches": "two batch sizes of an arm",
    "memory": "pools larger than the log's rounding",
    "step": "a valid record",
    "context": "speculative arms",
    "distance": "records of the attention-mass probe",
    "decision": "records of the decision probe",
}


def stem_of(name: str) -> str:
    """What a figure's files are called, less their endings: `figure_3`."""
    return f"figure_{_short(name)}"


def _short(name: str) -> str:
    return name.removeprefix("figure_").removeprefix("figure-")


def make(name: str, study: Study) -> Figure | None:
    """Draw one figure without saving it; None where the records lack what it needs.

    Raises:
        ConfigError: no such figure.
    """
    from analysis.figures import base, capacity, more, paper, probes  # noqa: PLC0415  (matplotlib)

    short = _short(name)
    makers: dict[str, Callable[[Study], Figure | None]] = {
        "2": paper.figure_2, "3": paper.figure_3, "4": paper.figure_4, "5": paper.figure_5,
        "fit": more.latency_fit, "dose": more.dose_response, "decomposition": more.decomposition,
        "memory": more.memory_share, "context": more.acceptance_by_context,
        "step": more.step_by_context, "distance": probes.attention_by_distance,
        "decision": probes.decision_margins, "batches": capacity.batches,
    }  # fmt: skip
    if short not in makers:
        raise ConfigError(f"there is no figure {name!r}: choose one of {', '.join(FIGURES)}")
    with base.styled():
        return makers[short](study)


def draw(name: str, study: Study, folder: Path) -> Drawn:
    """Draw and save one figure; a note says why where there is nothing to draw.

    An older picture of that name then goes: it would be taken for one of these records.
    """
    from analysis.figures import base  # noqa: PLC0415

    figure = make(name, study)
    stem, needs = stem_of(name), FIGURES[_short(name)]
    if figure is None:
        gone = remove([folder / f"{stem}.{kind}" for kind in base.FORMATS])
        older = "; the older picture of that name was removed" if gone else ""
        return base.Drawn(stem, note=f"{stem}: nothing to draw, it needs {needs}{older}")
    with base.styled():
        return base.save(figure, stem, folder)
