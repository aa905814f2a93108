"""Two result sets, or two arms, compared point by point.

The effect is the ratio B / A of the metric, paired by everything that defines the point (when arms are
compared: by everything but the arm, and its window where only one of them has one), averaged on the logarithm
over the pairs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from analysis.estimators import Estimate
from analysis.machine import busy_text
from analysis.study import (
    ARM_FIELDS,
    Cell,
    Pick,
    accept_length,
    cells_of,
    counted,
    prompt_hash,
    step_ms,
    t_quantile,
    tpot_ms,
)
from analysis.unlike import unlike
from harness.errors import ConfigError
from harness.points import WINDOWED_ARMS, Point
from harness.printable import printable
from harness.records import Record

Metric = Literal["step_ms", "tpot_ms", "accept_length"]
PICKS: dict[str, Pick] = {"step_ms": step_ms, "tpot_ms": tpot_ms, "accept_length": accept_length}


@dataclass(frozen=True)
class Effect:
    """Cells that differ only in prompt and repeat.

    `ratio` is B / A with its 95 % interval: Student's t over 3 pairs or more, else from the intervals within
    the runs. `told_apart` is False where the interval holds 1 or where there is none.
    """

    label: str
    metric: str
    pairs: int
    a: float
    b: float
    ratio: Estimate

    @property
    def told_apart(self) -> bool:
        """The interval exists and leaves 1 out."""
        low, high = self.ratio.low, self.ratio.high
        return math.isfinite(low) and math.isfinite(high) and not low <= 1 <= high

    @property
    def worse_percent(self) -> float:
        """How much worse B is, in percent of A; negative when better. Times are worse when longer."""
        change = 100 * (self.ratio.value - 1)
        return -change if self.metric == "accept_length" else change


@dataclass(frozen=True)
class Comparison:
    """All effects, what could not be paired, and in what the machines and settings of the pairs differ."""

    effects: tuple[Effect, ...]
    only_a: int
    only_b: int
    invalid: int
    unlike: str = ""
    busy: int = 0


def compare_sets(a: Iterable[Record], b: Iterable[Record], metric: str) -> Comparison:
    """Two result sets, paired by equal points.

    Checkpoint hash and hardware name may differ between the sets where each has one alone: with several, a
    point would meet those of other machines and models.
    """
    a, b = list(a), list(b)
    alone = [
        name
        for name in ("checkpoint", "hardware")
        if all(len({getattr(r.point, name) for r in side}) <= 1 for side in (a, b))
    ]
    return _compare(a, b, metric, frozenset(alone))


def compare_arms(records: Iterable[Record], a: str, b: str, metric: str) -> Comparison:
    """Two arms of one result set; depths and windows pair with equal ones where both arms have them.

    Raises:
        ConfigError: an arm with itself.
    """
    if a == b:
        raise ConfigError(
            f"{a} would be compared with itself: name another arm, or the folders of two result sets"
        )
    records = list(records)
    dropped = ARM_FIELDS
    if "dense" not in (a, b):
        dropped = dropped - {"depth"}
    if {a, b} <= WINDOWED_ARMS:
        dropped = dropped - {"window_tokens", "sink_tokens"}
    first = [r for r in records if r.point.arm == a]
    return _compare(first, [r for r in records if r.point.arm == b], metric, dropped)


def _compare(a: Iterable[Record], b: Iterable[Record], metric: str, dropped: frozenset[str]) -> Comparison:
    pick = PICKS[metric]
    sides = [_cells(records, pick) for records in (a, b)]
    by_key = [_by_key(cells, dropped) for cells, _ in sides]
    common = by_key[0].keys() & by_key[1].keys()
    groups: dict[str, list[tuple[Cell, Cell]]] = defaultdict(list)
    for key in common:
        # Several windows of one arm may meet one native point: each is an effect of its own.
        for cell_a in by_key[0][key]:
            for cell_b in by_key[1][key]:
                groups[repr([_settings(cell_a.point), _settings(cell_b.point)])].append((cell_a, cell_b))
    labels = _labels([pairs[0] for pairs in groups.values()])
    named = sorted(zip(labels, groups.values(), strict=True), key=lambda item: item[0])
    effects = tuple(_effect(label, metric, pairs, pick) for label, pairs in named)
    only = [sum(len(v) for k, v in side.items() if k not in common) for side in by_key]
    paired = [cell for pairs in groups.values() for pair in pairs for cell in pair]
    busy = len({cell.record.key for cell in paired if busy_text(cell.record)})
    return Comparison(effects, only[0], only[1], sides[0][1] + sides[1][1], unlike(paired), busy)


def _cells(records: Iterable[Record], pick: Pick) -> tuple[list[Cell], int]:
    """Cells that count, and how many do not."""
    cells = cells_of(records)
    used = [cell for cell in cells if counted([cell], pick)[0] and not counted([cell], pick)[1]]
    return used, len(cells) - len(used)


def _by_key(cells: Sequence[Cell], dropped: frozenset[str]) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        fields: dict[str, Any] = cell.point.model_dump(mode="json", exclude=set(dropped))
        found[repr((prompt_hash(cell), sorted(fields.items())))].append(cell)
    return found


def _settings(point: Point) -> dict[str, Any]:
    """What an effect does not average over: all but prompt and repeat."""
    return point.model_dump(mode="json", exclude={"seed", "repeat"})


def _labels(pairs: Sequence[tuple[Cell, Cell]]) -> list[str]:
    """A name for each effect; settings that a label leaves out stand where two would be called alike."""
    plain = [_label(a.point, b.point) for a, b in pairs]
    labels = []
    for label, (a, b) in zip(plain, pairs, strict=True):
        alike = [pair for other, pair in zip(plain, pairs, strict=True) if other == label]
        more = []
        for name in _settings(a.point):
            found = {repr([getattr(x.point, name) for x in pair]) for pair in alike}
            if len(found) > 1:
                mine = dict.fromkeys(str(getattr(x.point, name)) for x in (a, b))
                more.append(f"{name}={' / '.join(mine)}")
        labels.append(f"{label} {', '.join(more)}".strip())
    return labels


def _label(a: Point, b: Point) -> str:
    """Both points' label; one that differs in the arm alone is told by it."""
    if a.label == b.label:
        return a.label
    shared = f" S={a.context_tokens} B={a.batch} {a.task}"
    first, second = (p.label.removesuffix(shared).removeprefix(f"{p.model} ") for p in (a, b))
    same = a.model == b.model and b.label.endswith(shared)
    return f"{a.model} {first} -> {second}{shared}" if same else f"{a.label} -> {b.label}"


def _effect(label: str, metric: str, pairs: Sequence[tuple[Cell, Cell]], pick: Pick) -> Effect:
    ratios = [pick(b).ratio_to(pick(a)) for a, b in pairs]
    logs = np.log([r.value for r in ratios])
    mean = float(logs.mean())
    if len(ratios) >= 3:
        half = t_quantile(len(ratios) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(ratios))
    else:
        halves = [math.log(r.high / r.low) / 2 if r.low > 0 else math.nan for r in ratios]
        half = float(np.sqrt(np.sum(np.square(halves)))) / len(ratios)
    ratio = Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(ratios))
    means = [float(np.mean([pick(pair[i]).value for pair in pairs])) for i in (0, 1)]
    return Effect(label, metric, len(pairs), means[0], means[1], ratio)


def exit_status(found: Comparison, threshold_percent: float) -> int:
    """1 where something is worse than the threshold and can be told apart, 2 without pairs, else 0."""
    if not found.effects:
        return 2
    bad = any(e.told_apart and e.worse_percent > threshold_percent for e in found.effects)
    return 1 if bad else 0


def _counted_as(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def render(found: Comparison, a: str, b: str, threshold_percent: float) -> str:
    """Plain sentences, one an effect."""
    lines = []
    if found.effects:
        good = "above" if found.effects[0].metric == "accept_length" else "below"
        apart = sum(e.told_apart for e in found.effects)
        worse = sum(e.told_apart and e.worse_percent > 0 for e in found.effects)
        lines.append(
            f"x is {b} / {a}: {good} 1 {b} is better. Of {_counted_as(len(found.effects), 'comparison')} "
            f"{apart} can be told apart from 1: {apart - worse} better, {worse} worse."
        )
    for e in found.effects:
        unit = "" if e.metric == "accept_length" else " ms"
        name = {"step_ms": "step", "tpot_ms": "TPOT", "accept_length": "AL"}[e.metric]
        text = f"{e.label}: {name} {e.a:.3f} -> {e.b:.3f}{unit}, "
        if math.isfinite(e.ratio.low):
            text += f"x{e.ratio.value:.3f} [{e.ratio.low:.3f}, {e.ratio.high:.3f}] "
            text += f"over {_counted_as(e.pairs, 'pair')}: "
        else:
            text += f"x{e.ratio.value:.3f} (too few steps for an interval): "
        if not e.told_apart:
            text += "cannot be told apart"
        else:
            text += "worse" if e.worse_percent > 0 else "better"
            if e.worse_percent > threshold_percent:
                text += f", by more than {threshold_percent:g} %"
        lines.append(text)
    if found.busy:
        lines.append(f"{_counted_as(found.busy, 'record')} of these came from a busy machine (check --all)")
    if found.unlike:
        lines.append(f"not all was measured alike: {printable(found.unlike)}")
    if not found.effects:
        lines.append(f"nothing to compare: {a} and {b} share no valid point")
    if found.only_a or found.only_b or found.invalid:
        rest = f"not paired: {found.only_a} only in {a}, {found.only_b} only in {b}; "
        lines.append(f"{rest}{found.invalid} invalid or flagged records left out")
    return "\n".join(lines) + "\n"
