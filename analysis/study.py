"""Records with their statistics and verdicts, selected, paired and averaged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from analysis.copies import copies
from analysis.estimators import Estimate, StepStatistics, step_statistics
from analysis.validity import judge
from analysis.verdict import Verdict
from harness.points import Arm, Point
from harness.records import Outcome, Record

NAN = float("nan")
Pick = Callable[["Cell"], Estimate]


@dataclass(frozen=True)
class Cell:
    """A record, what was computed from it, and whether it counts. `copy_of`: the key of the same run."""

    record: Record
    copy_of: str | None = None

    @cached_property
    def statistics(self) -> StepStatistics | None:
        """Steady-state figures, or None where there is no steady state."""
        return step_statistics(self.record) if self.record.outcome is Outcome.OK else None

    @cached_property
    def verdict(self) -> Verdict:
        """Validity, with reasons."""
        return judge(self.record, self.statistics, self.copy_of)

    @property
    def point(self) -> Point:
        """The record's point."""
        return self.record.point


@dataclass(frozen=True, eq=False)
class Group:
    """Cells that one table row or figure panel may compare: same model, machine and precision.

    Hashed by identity, so that what is the same for all its rows can be worked out once.
    """

    model: str
    checkpoint: str
    hardware: str
    cells: tuple[Cell, ...]

    def select(self, **wanted: Any) -> list[Cell]:
        """Cells whose point has these values; a callable value is a condition, a tuple lists choices."""
        return [cell for cell in self.cells if _matches(cell.point, wanted)]

    def values(self, name: str, **wanted: Any) -> list[Any]:
        """Distinct values of a point's field, sorted."""
        return sorted({getattr(cell.point, name) for cell in self.select(**wanted)})

    @cached_property
    def window_arm(self) -> Arm:
        """`ring` (the paper's Windowed-MTP), or `windowed` where no ring was measured."""
        return "ring" if self.select(arm="ring") or not self.select(arm="windowed") else "windowed"

    def operating_window(self, **wanted: Any) -> int | None:
        """The window most cells of the window arm use: the paper's 4032 where it is among them."""
        found = [c.point.window_tokens for c in self.select(arm=self.window_arm, **wanted)]
        sizes = [w for w in found if w is not None]
        if not sizes or 4032 in sizes:
            return 4032 if sizes else None
        return max(set(sizes), key=lambda w: (sizes.count(w), w))


def _matches(point: Point, wanted: dict[str, Any]) -> bool:
    for name, value in wanted.items():
        actual = getattr(point, name)
        if callable(value):
            if not value(actual):
                return False
        elif isinstance(value, tuple):
            if actual not in value:
                return False
        elif actual != value:
            return False
    return True


def cells_of(records: Iterable[Record]) -> list[Cell]:
    """Cells of a result set; of several copies of one run only the first counts."""
    records = list(records)
    known = copies(records)
    return [Cell(record, known.get(record.key)) for record in records]


class Study:
    """All records of a result set."""

    def __init__(self, records: Iterable[Record], unreadable: int = 0) -> None:
        """`unreadable`: records of the set that could not be read, to be said of all that comes of it."""
        self.cells = tuple(cells_of(records))
        self.unreadable = unreadable

    @cached_property
    def groups(self) -> list[Group]:
        """One group a (model, checkpoint, hardware), sorted; cells sorted by what defines their points."""
        found: dict[tuple[str, str, str], list[Cell]] = {}
        for cell in sorted(self.cells, key=_order):
            p = cell.point
            found.setdefault((p.model, p.checkpoint, p.hardware), []).append(cell)
        return [Group(*key, tuple(cells)) for key, cells in sorted(found.items())]

    @property
    def where(self) -> str:
        """`tiny on cpu` for each group: belongs above every table."""
        return "; ".join(sorted({f"{g.model} on {g.hardware}" for g in self.groups})) or "no records"

    @property
    def left_out(self) -> str:
        """A sentence on records that could not be read; empty where there are none."""
        if not self.unreadable:
            return ""
        noun = "record" if self.unreadable == 1 else "records"
        return (
            f"{self.unreadable} {noun} of this set could not be read and are left out: "
            "`python -m analysis check` names them."
        )

    @property
    def copies(self) -> str:
        """A sentence on cells that are another's copies; empty where there are none."""
        found = [cell.copy_of for cell in self.cells if cell.copy_of is not None]
        shown = ", ".join(sorted(set(found))[:3])
        return (
            f"Of {shown} {len(found)} copies are left out, one run counts once: see check." if found else ""
        )

    def invalid(self) -> Iterator[Cell]:
        """Cells that enter no average."""
        yield from (cell for cell in self.cells if not cell.verdict.valid)


def _order(cell: Cell) -> tuple[Any, ...]:
    p = cell.point
    return (p.task, p.context_tokens, p.arm, p.depth, p.window_tokens or 0, p.batch, p.tp, p.seed, p.repeat,
            p.key)  # fmt: skip


# -- what to pick from a cell -------------------------------------------------------------------------------


def step_ms(cell: Cell) -> Estimate:
    """T_iter."""
    return cell.statistics.step_ms if cell.statistics else Estimate(NAN)


def tpot_ms(cell: Cell) -> Estimate:
    """T_iter / AL."""
    return cell.statistics.tpot_ms if cell.statistics else Estimate(NAN)


def accept_length(cell: Cell) -> Estimate:
    """Mean AL over the steady lines."""
    return cell.statistics.accept_length if cell.statistics else Estimate(NAN)


_NEEDS_ACCEPTANCE = (tpot_ms, accept_length)


@dataclass(frozen=True)
class Pooled:
    """An average over prompts and repeats, or why there is none. `flag` marks doubtful values."""

    estimate: Estimate | None
    note: str = ""
    flag: str = ""


def counted(cells: Sequence[Cell], pick: Pick) -> tuple[list[Cell], str]:
    """Cells that may be averaged for this quantity, and a flag where only doubtful ones exist."""
    valid = [cell for cell in cells if cell.verdict.valid and math.isfinite(pick(cell).value)]
    if pick not in _NEEDS_ACCEPTANCE:
        return valid, ""
    good = [cell for cell in valid if cell.verdict.acceptance_valid]
    return (good, "") if good or not valid else (valid, "output loops")


def pooled(cells: Sequence[Cell], pick: Pick) -> Pooled:
    """Mean over the cells that count."""
    used, flag = counted(cells, pick)
    if used:
        return Pooled(mean_of([pick(cell) for cell in used]), flag=flag)
    return Pooled(None, note=why_missing(cells))


def pooled_ratio(over: Sequence[Cell], under: Sequence[Cell], pick: Pick) -> Pooled:
    """Mean of over / under, paired by prompt, conditions and repeat so that the content cancels."""
    pairs, flag = _pairs(over, under, pick)
    if not pairs:
        return Pooled(None, note=_unpaired(over, under))
    return Pooled(mean_of([a.ratio_to(b) for a, b in pairs]), flag=flag)


def _unpaired(over: Sequence[Cell], under: Sequence[Cell]) -> str:
    """Why two sets have no pair."""
    none = next((side for side in (over, under) if not side), None)
    return why_missing(none if none is not None else [*over, *under])


def _pairs(
    over: Sequence[Cell], under: Sequence[Cell], pick: Pick
) -> tuple[list[tuple[Estimate, Estimate]], str]:
    """Values of the cells that count and that `pair_key` puts together, and a flag of doubtful ones."""
    top, flag_top = counted(over, pick)
    low, flag_low = counted(under, pick)
    found = {pair_key(cell): pick(cell) for cell in low}
    pairs = [(pick(cell), found[key]) for cell in top if (key := pair_key(cell)) in found]
    return pairs, flag_top or flag_low


def pooled_difference(over: Sequence[Cell], under: Sequence[Cell], pick: Pick) -> Pooled:
    """Mean of over - under, paired as in `pooled_ratio`.

    The interval is Student's t over 3 pairs or more; with fewer those within the runs add in quadrature.
    """
    pairs, flag = _pairs(over, under, pick)
    if not pairs:
        return Pooled(None, note=_unpaired(over, under))
    values = np.asarray([a.value - b.value for a, b in pairs])
    mean = float(values.mean())
    if values.size >= 3:
        half = t_quantile(values.size - 1) * float(values.std(ddof=1)) / math.sqrt(values.size)
    else:
        halves = [math.hypot(a.high - a.low, b.high - b.low) / 2 for a, b in pairs]
        half = math.hypot(*halves) / len(halves)
    return Pooled(Estimate(mean, mean - half, mean + half, values.size), flag=flag)


def of_common_prompts(sets: Sequence[Sequence[Cell]], pick: Pick) -> list[list[Cell]]:
    """Of each set the cells of prompts that all sets have; the sets as they are where they share none.

    Means that are compared with each other, as over depths, must be over the same content.
    """

    def prompt(cell: Cell) -> tuple[object, ...]:
        return prompt_hash(cell), cell.point.seed, repr(sorted(task_params(cell).items()))

    kept = [counted(cells, pick)[0] for cells in sets]
    prompts = [{prompt(cell) for cell in cells} for cells in kept if cells]
    common = set.intersection(*prompts) if prompts else set()
    if not common:
        return [list(cells) for cells in sets]
    return [
        [c for c in cells if prompt(c) in common] if valid else list(cells)
        for cells, valid in zip(sets, kept, strict=True)
    ]


ARM_FIELDS = frozenset(
    {"arm", "depth", "window_tokens", "sink_tokens", "draft_backend", "prune_draft_prefill"}
)
"""Fields of a point that belong to its arm: two arms of one cell differ in nothing else."""


def prompt_hash(cell: Cell) -> str | None:
    """SHA-256 of the prompt's token ids; None where the record has no prompt (an imported log)."""
    return cell.record.input.sha256_ids if cell.record.input is not None else None


def task_params(cell: Cell) -> dict[str, Any]:
    """A task's parameters; an imported log's tag is none, it names the run."""
    return {name: value for name, value in cell.point.task_params.items() if name != "tag"}


def pair_key(cell: Cell) -> str:
    """What two runs share that differ in their arm alone, the prompt's own tokens included."""
    params = sorted(task_params(cell).items())
    rest = cell.point.model_dump_json(exclude={*ARM_FIELDS, "task_params"})
    return f"{prompt_hash(cell)} {params} {rest}"


class Selection(list[Cell]):
    """Cells that were asked for; `why` says where else they are if there are none."""

    def __init__(self, cells: Iterable[Cell] = (), why: str = "") -> None:
        super().__init__(cells)
        self.why = why


def why_missing(cells: Sequence[Cell]) -> str:
    """Why no cell of these counts: the first reason, in the words a table shows."""
    if not cells:
        return getattr(cells, "why", "") or "not measured here"
    labels = [cell.verdict.label.removeprefix("invalid:") for cell in cells if not cell.verdict.valid]
    return labels[0].replace("_", " ") if labels else "no common prompt"


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of independent estimates.

    The interval is Student's t over 3 or more of them (between prompts or repeats), on the logarithms, since
    times, lengths and ratios are positive; with fewer it is the average of their own within-run intervals.
    """
    values = np.asarray([e.value for e in estimates], dtype=np.float64)
    mean = float(values.mean())
    if values.size >= 3:
        scale = t_quantile(values.size - 1) / math.sqrt(values.size)
        if (values > 0).all():
            factor = math.exp(scale * float(np.log(values).std(ddof=1)))
            return Estimate(mean, mean / factor, mean * factor, values.size)
        half = scale * float(values.std(ddof=1))
        return Estimate(mean, mean - half, mean + half, values.size)
    low, high = (float(np.mean([getattr(e, end) for e in estimates])) for end in ("low", "high"))
    return Estimate(mean, low, high, values.size)


def t_quantile(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t."""
    from scipy import special  # noqa: PLC0415  (slow to import, only needed with repeats)

    return float(special.stdtrit(degrees, 0.975))
