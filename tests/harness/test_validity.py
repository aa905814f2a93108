"""Lengths are exact or the run is invalid."""

from __future__ import annotations

import pytest

from harness.measure.validity import check_completion_tokens, check_prompt_tokens


@pytest.mark.parametrize(
    ("target", "counted", "cached", "verdict"),
    [
        (1_040_000, 1_040_000, 0, "ok"),
        (1_040_000, 1_040_000, None, "ok"),
        (1_040_000, 1_040_000, 1_039_872, "ok"),
        (1_040_000, 1_040_001, 0, "invalid"),
        (1_040_000, 1_040_013, None, "invalid"),
        (1_040_000, 1_040_013, 500, "invalid"),
        (1_040_000, 801, 0, "invalid"),
        (1_040_000, 1_039_872, None, "invalid"),
        (262_144, 4_840, 0, "invalid"),
        (1_040_000, 128, 1_039_872, "recheck_cold"),
        (1_040_000, 0, 0, "invalid"),
    ],
)
def test_prompt_length(target, counted, cached, verdict):
    check = check_prompt_tokens(target, counted, cached)
    assert check.verdict == verdict
    assert check.ok == (verdict == "ok")
    assert bool(check.reason) != check.ok
    if not check.ok:
        assert str(counted) in check.reason
        assert str(target) in check.reason


@pytest.mark.parametrize(
    ("asked", "returned", "finish", "ignore_eos", "ok"),
    [
        (100, 100, "length", True, True),
        (100, 98, "length", True, False),
        (100, 98, "length", False, False),
        (100, 98, "stop", False, True),
        (100, 98, "stop", True, False),
        (100, 101, "length", True, False),
        (100, 0, "stop", False, False),
        (100, 98, None, False, True),
    ],
)
def test_completion_length(asked, returned, finish, ignore_eos, ok):
    check = check_completion_tokens(asked, returned, finish, ignore_eos)
    assert check.ok == ok
    assert ok or f"{returned} tokens came back" in check.reason
