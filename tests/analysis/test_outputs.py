"""The repetition screen and the comparison of outputs."""

from __future__ import annotations

import random

import pytest

from analysis.outputs import compare_outputs, screen_repetition


def healthy(n: int, seed: int = 0) -> list[int]:
    return [random.Random(seed + i).randrange(10_000) for i in range(n)]


@pytest.mark.parametrize(
    ("ids", "verdict"),
    [
        (healthy(40), "ok"),
        (healthy(9) + [77] * 40, "loop(period=1)"),
        ([5, 6, 7, 8, 5, 6, 7, 9] * 8, "loop(period=8)"),
        (healthy(40) + [5, 6, 7] * 12, "loop(period=3)"),
        ([1, 2, 3], "too_short_to_judge"),
        ([], "too_short_to_judge"),
        ([*healthy(200), 4, 4, 4], "ok"),
        (healthy(300) + healthy(50, seed=999) * 4, "loop(period=50)"),
        ([1, 2] * 30 + healthy(60), "ok"),
    ],
    ids=["healthy", "one", "eight", "late", "short", "empty", "few", "long_period", "recovered"],
)
def test_screen(ids: list[int], verdict: str) -> None:
    assert str(screen_repetition(ids)) == verdict


def test_a_loop_with_a_counter_in_it_is_a_loop() -> None:
    ids = healthy(20)
    for i in range(12):
        ids += [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 1000 + i]
    assert screen_repetition(ids).verdict == "loop"


@pytest.mark.parametrize(
    ("ids", "coverage", "inflates"),
    [
        (healthy(40), 0.0, False),
        (healthy(20) + [77] * 60, 0.75, True),
        (healthy(64) + [5, 6, 7] * 12, 0.36, True),
        # Left again, but half of the tokens came for free.
        ([1, 2] * 30 + healthy(60), 0.5, True),
        (healthy(40) + [1, 2] * 10 + healthy(140, seed=500), 0.1, False),
        (healthy(30) + [4] * 10 + healthy(30, seed=500), 0.0, False),
        # Two loops of different periods, one after the other.
        ([9] * 20 + healthy(60) + [1, 2, 3, 4] * 5, 0.4, True),
        ([1, 2, 3], 0.0, False),
    ],
    ids=["healthy", "tail", "late", "left", "little", "few", "two", "short"],
)
def test_coverage(ids: list[int], coverage: float, inflates: bool) -> None:
    found = screen_repetition(ids)
    assert found.coverage == pytest.approx(coverage, abs=0.02)
    assert found.inflates == inflates


def test_first_difference() -> None:
    assert compare_outputs([1, 2, 3], [1, 2, 3]).identical
    assert compare_outputs([1, 2, 3], [1, 9, 3]).first_difference == 1
    assert compare_outputs([1, 2], [1, 2, 3]).first_difference == 2
