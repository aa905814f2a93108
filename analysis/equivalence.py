"""Do the arms give the same greedy output? Pairs of arms, prompt by prompt, and an exact test over them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

import numpy as np

from analysis.extras import read_margins
from analysis.outputs import compare_outputs
from analysis.study import Cell, Group, prompt_hash, task_params
from harness.points import ARMS, WINDOWED_ARMS, Point
from harness.records import Outcome, Record

_PROBES = (None, "margins")


@dataclass(frozen=True, order=True)
class Setting:
    """What outputs must share to be compared at all; `penalty` is the repetition penalty, 1 for none."""

    context_tokens: int
    precision: str
    penalty: float


@dataclass(frozen=True)
class Comparison:
    """One prompt under two arms.

    `first_difference` is None for identical outputs. `margin` is the gap in logits between the two best
    tokens there, after the tokens that both arms wrote; None where no record tells it.
    """

    setting: Setting
    task: str
    prompt: tuple[object, ...]
    first: str
    second: str
    tokens: int
    first_difference: int | None
    margin: float | None = None


@dataclass(frozen=True)
class ArmPair:
    """Two arms over the prompts they share.

    `first_differences`: position of the first different token, one a prompt that differs; `margins` there,
    where a record with `probe=margins` tells them. `task` is empty over several inputs.
    """

    setting: Setting
    task: str
    first: str
    second: str
    prompts: int
    identical: int
    tokens: int
    first_differences: tuple[int, ...]
    margins: tuple[float, ...]


@dataclass(frozen=True)
class Divergence:
    """Does `arm` differ from native more often than native differs from dense, over the same prompts?

    Each prompt is judged twice, so the two shares are paired and the exact McNemar test applies: of the
    prompts where just one of the pairs differs, either is as likely under the null. (Fisher's test would take
    the two shares for independent samples.) `p` is one-sided, and 1 where no prompt tells the pairs apart.
    """

    setting: Setting
    arm: str
    prompts: int
    neither: int
    both: int
    only_baseline: int
    only_window: int
    p: float

    @property
    def least_p(self) -> float:
        """The smallest p that this many telling prompts could give: above 0.05 nothing can be shown."""
        return float(0.5 ** (self.only_baseline + self.only_window))


def precision(point: Point) -> str:
    """`bfloat16`, or with its KV dtype where that is another."""
    return point.dtype if point.kv_dtype == point.dtype else f"{point.dtype}, KV {point.kv_dtype}"


def comparisons(group: Group) -> list[Comparison]:
    """Every pair of arms on every prompt, at the group's most frequent draft length and window.

    Sampled, failed, batched and probed runs are left out, as are outputs of which not all tokens are stored;
    runs with `probe=margins` stand in where no plain one exists.
    """
    plain, telling = _by_prompt(group)
    found = []
    for prompt, cells in plain.items():
        for a, b in combinations([arm for arm in ARMS if arm in cells], 2):
            found.append(_compare(prompt, cells[a], cells[b], telling.get(prompt, [])))
    return sorted(found, key=lambda c: (c.setting, c.task, ARMS.index(c.first), ARMS.index(c.second)))


def arm_pairs(group: Group, by_input: bool = False) -> list[ArmPair]:
    """Pairs of arms by setting, over all inputs or for each."""

    def key(c: Comparison) -> tuple[object, ...]:
        return c.setting, c.task if by_input else "", ARMS.index(c.first), ARMS.index(c.second)

    ordered = sorted(comparisons(group), key=key)
    return [_pair(list(found), by_input) for _, found in groupby(ordered, key=key)]


def divergences(group: Group) -> list[Divergence]:
    """The exact test for each window arm and setting with dense and native on the same prompts."""
    differs: dict[tuple[Setting, tuple[object, ...]], dict[tuple[str, str], bool]] = defaultdict(dict)
    for c in comparisons(group):
        differs[c.setting, c.prompt][c.first, c.second] = c.first_difference is not None
    counts: dict[tuple[Setting, str], Counter[tuple[bool, bool]]] = defaultdict(Counter)
    for (setting, _), pairs in differs.items():
        for arm in sorted(WINDOWED_ARMS):
            if ("dense", "native") in pairs and ("native", arm) in pairs:
                counts[setting, arm][pairs["dense", "native"], pairs["native", arm]] += 1
    return [_divergence(setting, arm, found) for (setting, arm), found in sorted(counts.items())]


def typical_margins(group: Group) -> dict[Setting, float]:
    """Median margin over all output tokens of the records that tell it, by setting: the scale of a margin."""
    found: dict[Setting, list[float]] = defaultdict(list)
    for cell in group.cells:
        if cell.verdict.of_point:
            found[_setting(cell.point)] += read_margins(cell.record)
    return {setting: float(np.median(values)) for setting, values in found.items() if values}


def _setting(point: Point) -> Setting:
    return Setting(point.context_tokens, precision(point), point.repetition_penalty)


_Prompt = tuple[Setting, str, tuple[object, ...]]


def _by_prompt(group: Group) -> tuple[dict[_Prompt, dict[str, Cell]], dict[_Prompt, list[Cell]]]:
    """Cells by prompt and arm, and by prompt those that tell margins."""
    usable = [
        cell for cell in group.cells
        if cell.record.outcome is Outcome.OK and not cell.point.temperature and cell.record.requests
        and cell.point.batch == 1 and cell.point.probe in _PROBES and cell.verdict.of_point
        and whole_output(cell.record)
    ]  # fmt: skip
    depth = _usual(c.point.depth for c in usable if c.point.arm != "dense")
    window = _usual(c.point.window_tokens for c in usable if c.point.arm in WINDOWED_ARMS)
    usable = [cell for arm in ARMS for cell in _alike([c for c in usable if c.point.arm == arm])]
    by_run: dict[_Prompt, dict[tuple[object, ...], dict[str, Cell]]] = defaultdict(lambda: defaultdict(dict))
    telling: dict[_Prompt, list[Cell]] = defaultdict(list)
    # A plain run comes before one with margins, the first repeat before later ones.
    for cell in sorted(usable, key=lambda c: (c.point.probe is not None, c.point.repeat)):
        p = cell.point
        if (p.arm != "dense" and p.depth != depth) or (p.arm in WINDOWED_ARMS and p.window_tokens != window):
            continue
        # The tokens themselves: a seed gives another text where sources or generators differ.
        words = (prompt_hash(cell), p.seed, repr(sorted(task_params(cell).items())))
        key = (_setting(p), p.task, (p.task, *words))
        by_run[key][p.tp, p.max_new_tokens, p.ignore_eos].setdefault(p.arm, cell)
        if read_margins(cell.record):
            telling[key].append(cell)
    # A prompt counts once: as it was run by most arms.
    return {key: max(runs.values(), key=len) for key, runs in by_run.items()}, telling


def whole_output(record: Record) -> bool:
    """Every token that came back is stored: parts of outputs, or none, would pass for identical ones."""
    return all(0 < r.completion_tokens == len(r.output_ids) for r in record.requests)


def _usual(values: Iterable[int | None]) -> int | None:
    counts = Counter(values)
    return max(counts, key=lambda v: (counts[v], v or 0)) if counts else None


def _alike(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of one arm's own setup, that of most of them."""

    def setup(cell: Cell) -> tuple[object, ...]:
        p = cell.point
        return p.draft_backend, p.prune_draft_prefill, p.sink_tokens or 0

    usual = Counter(map(setup, cells)).most_common(1)
    return [cell for cell in cells if setup(cell) == usual[0][0]]


def _compare(key: _Prompt, a: Cell, b: Cell, telling: Sequence[Cell]) -> Comparison:
    setting, task, prompt = key
    first, second = a.record.requests[0].output_ids, b.record.requests[0].output_ids
    place = compare_outputs(first, second).first_difference
    margin = None
    if place is not None:
        for cell in telling:
            told = read_margins(cell.record)
            if place < len(told) and cell.record.requests[0].output_ids[:place] == first[:place]:
                margin = told[place]
                break
    return Comparison(setting, task, prompt, a.point.arm, b.point.arm, len(first), place, margin)


def _pair(found: Sequence[Comparison], by_input: bool) -> ArmPair:
    c = found[0]
    places = tuple(x.first_difference for x in found if x.first_difference is not None)
    return ArmPair(
        c.setting,
        c.task if by_input else "",
        c.first,
        c.second,
        prompts=len(found),
        identical=len(found) - len(places),
        tokens=sum(x.tokens for x in found),
        first_differences=places,
        margins=tuple(x.margin for x in found if x.margin is not None),
    )


def _divergence(setting: Setting, arm: str, found: Counter[tuple[bool, bool]]) -> Divergence:
    from scipy import stats  # noqa: PLC0415  (slow to import, only needed here)

    baseline, window = found[True, False], found[False, True]
    telling = baseline + window
    p = float(stats.binomtest(window, telling, 0.5, "greater").pvalue) if telling else 1.0
    return Divergence(
        setting, arm, sum(found.values()), found[False, False], found[True, True], baseline, window, p
    )
