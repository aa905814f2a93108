"""Do two arms draw from the same distribution? Sampled tokens at one position, counted in both.

Pearson's chi-square test of homogeneity on the two rows of counts. Tokens too rare for its approximation are
pooled: every column is expected at least 5 times in each arm. The first position comes from the prefill,
where nothing was drafted, and is left out. Holm's method corrects for the other positions, however their
tests may depend on each other (S. Holm, Scand. J. Statist. 6, 1979).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.extras import Draws

_LEAST_EXPECTED = 5.0
FIRST_POSITION = 1
"""The first output token that a speculative arm's verify emits."""


@dataclass(frozen=True)
class TwoSample:
    """One position of two arms.

    Attributes:
        position: of the output token, from 0.
        draws: in each arm.
        kinds: columns of the test after pooling; below 2 there is nothing to test and `p` is 1.
        distance: total variation distance of the two rows after pooling, sampling noise included.
        p, adjusted_p: of the test, and after Holm's correction over the positions.
    """

    position: int
    draws: tuple[int, int]
    kinds: int
    statistic: float
    distance: float
    p: float
    adjusted_p: float


def compare_draws(first: Draws, second: Draws) -> list[TwoSample]:
    """Test every position that both arms have from `FIRST_POSITION` on."""
    positions = range(FIRST_POSITION, min(len(first.positions), len(second.positions)))
    tested = [(i, *_test(first.positions[i], second.positions[i])) for i in positions]
    adjusted = holm([p for *_, p in tested])
    draws = (first.requests, second.requests)
    return [
        TwoSample(i, draws, kinds, statistic, distance, p, q)
        for (i, kinds, statistic, distance, p), q in zip(tested, adjusted, strict=True)
    ]


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for their number, in the order given."""
    adjusted = [1.0] * len(values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[i]))
        adjusted[i] = highest
    return adjusted


def _test(first: Mapping[str, int], second: Mapping[str, int]) -> tuple[int, float, float, float]:
    """(columns, chi-square, total variation distance, p) of two rows of counts."""
    from scipy import stats  # noqa: PLC0415  (slow to import, only needed here)

    tokens = sorted(first.keys() | second.keys(), key=int)
    counts = np.array([[row.get(token, 0) for token in tokens] for row in (first, second)], dtype=np.int64)
    sizes = counts.sum(axis=1, keepdims=True)
    if not sizes.all():
        return 0, 0.0, 0.0, 1.0
    table = _pooled(counts)
    distance = float(np.abs(table[0] / sizes[0] - table[1] / sizes[1]).sum() / 2)
    if table.shape[1] < 2:
        return table.shape[1], 0.0, distance, 1.0
    found = stats.chi2_contingency(table, correction=False)
    return table.shape[1], float(found.statistic), distance, float(found.pvalue)


def _pooled(counts: np.ndarray) -> np.ndarray:
    """Columns whose least expected count is too small become one, with the rarest of the others if needed."""
    least_share = counts.sum(axis=1).min() / counts.sum()
    order = np.argsort(-counts.sum(axis=0), kind="stable")
    counts = counts[:, order]
    expected = counts.sum(axis=0) * least_share
    kept = int((expected >= _LEAST_EXPECTED).sum())
    while kept > 0 and kept < counts.shape[1] and expected[kept:].sum() < _LEAST_EXPECTED:
        kept -= 1
    if kept == counts.shape[1]:
        return counts
    rest = counts[:, kept:].sum(axis=1, keepdims=True)
    return np.concatenate([counts[:, :kept], rest], axis=1)
