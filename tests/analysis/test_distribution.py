"""The two-sample test: holds its level on equal distributions, and sees unequal ones."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from factory import make_record
from scipy import stats

from analysis.distribution import compare_draws, holm
from analysis.extras import Draws
from analysis.tables import frame

POSITIONS = 4
WORDS = np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.05, 0.04, 0.03, 0.02, 0.01, 0.01, 0.005, 0.005])


def drawn(seed: int, weights: np.ndarray = WORDS, n: int = 2048, positions: int = POSITIONS) -> Draws:
    rng = np.random.default_rng(seed)
    counts = [
        Counter(rng.choice(len(weights), n, p=weights / weights.sum()).tolist()) for _ in range(positions)
    ]
    return Draws(
        requests=n, temperature=1.0, verify_steps=5 * n, accepted_drafts=n,
        positions=[{str(token): c for token, c in counter.items()} for counter in counts],
    )  # fmt: skip


def test_level_on_equal_distributions() -> None:
    """200 pairs: rejections at 5 % within the binomial's 99.9 % range, also with rare tokens."""
    p = [row.p for seed in range(50) for row in compare_draws(drawn(2 * seed), drawn(2 * seed + 1))]
    assert len(p) == 50 * (POSITIONS - 1), "the first position is the prefill's"
    rejected = sum(value < 0.05 for value in p)
    assert stats.binom(len(p), 0.05).ppf(0.0005) <= rejected <= stats.binom(len(p), 0.05).ppf(0.9995)


def test_power_against_a_shift_of_a_few_percent() -> None:
    other = WORDS.copy()
    other[0] -= 0.06
    other[3] += 0.06
    rows = compare_draws(drawn(1), drawn(2, other))
    assert max(row.adjusted_p for row in rows) < 0.01
    assert all(0.02 < row.distance < 0.12 for row in rows)


def test_greedy_verification_of_samples_would_be_seen() -> None:
    """What SGLang's own CPU path does: the likeliest token instead of a draw."""
    certain = np.zeros_like(WORDS)
    certain[0] = 1
    assert max(row.adjusted_p for row in compare_draws(drawn(1), drawn(2, certain))) < 1e-100


def test_agrees_with_scipy_where_nothing_is_rare() -> None:
    a, b = ({"1": 300, "2": 200, "7": 100}, {"1": 280, "2": 230, "7": 90})
    first, second = (
        Draws(requests=600, temperature=1, verify_steps=0, accepted_drafts=0, positions=[x, x])
        for x in (a, b)
    )
    (row,) = compare_draws(first, second)
    expected = stats.chi2_contingency([[300, 200, 100], [280, 230, 90]], correction=False)
    assert row.p == pytest.approx(expected.pvalue)
    assert (row.kinds, row.draws, row.position) == (3, (600, 600), 1)


def test_one_kind_of_token_cannot_be_told_apart() -> None:
    rows = compare_draws(drawn(1, np.array([1.0])), drawn(2, np.array([1.0])))
    assert {(row.kinds, row.p) for row in rows} == {(1, 1.0)}


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_table() -> None:
    records = [
        make_record(arm, temperature=1.0, batch=16, record={"extras": {"draws": drawn(i).model_dump()}})
        for i, arm in enumerate(("dense", "native", "ring"))
    ]
    rows = frame("sampling", records)
    assert list(rows["pair"].unique()) == [
        "dense / native (d = 7)", "dense / ring (d = 7, W = 252+4)",
        "native (d = 7) / ring (d = 7, W = 252+4)",
    ]  # fmt: skip
    assert list(rows["position"].unique()) == [1, 2, 3]
    assert set(rows["draws"]) == {"2,048"} and set(rows["accepted"]) == {"1.00 / 1.00"}
    assert rows["adjusted_p"].between(0, 1).all()
