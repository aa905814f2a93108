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


def test_first_difference() -> None:
    assert compare_outputs([1, 2, 3], [1, 2, 3]).identical
    assert compare_outputs([1, 2, 3], [1, 9, 3]).first_difference == 1
    assert compare_outputs([1, 2], [1, 2, 3]).first_difference == 2
