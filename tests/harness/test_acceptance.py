"""Speculation fields of replies over SGLang's releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.acceptance import read_speculation

REPLIES = [
    json.loads(line)
    for line in (Path(__file__).resolve().parent.parent / "data/analysis/replies.jsonl")
    .read_text()
    .splitlines()
]


@pytest.mark.parametrize("case", REPLIES, ids=[case["name"] for case in REPLIES])
def test_every_release_gives_the_same_length(case: dict[str, Any]) -> None:
    found = read_speculation(case["meta"])
    assert found.accept_length == (
        pytest.approx(case["accept_length"]) if case["accept_length"] is not None else None
    )
    assert found.approximate is case.get("approximate", False)
    assert [p.split(":")[0] for p in found.problems] == ([case["problem"]] if "problem" in case else [])


def test_the_servers_own_length_counts_the_prefills_token() -> None:
    meta = {
        "completion_tokens": 31, "spec_accept_length": 31 / 30, "spec_accept_rate": 0.0,
        "spec_num_correct_drafts": 0, "spec_num_proposed_drafts": 180, "spec_verify_ct": 30,
        "spec_correct_drafts_histogram": [30],
    }  # fmt: skip
    found = read_speculation(meta, depth=7)
    assert found.accept_length == 1.0
    assert found.accept_rate == 0.0
    assert found.overshoot == 0
    assert found.drafter_dead
    assert found.histogram == (30, 0, 0, 0, 0, 0, 0)
    assert found.problems == ()


def test_few_steps_do_not_condemn_a_draft() -> None:
    assert not read_speculation({"spec_verify_ct": 3, "spec_num_correct_drafts": 0}).drafter_dead


def test_absent_is_none_not_zero() -> None:
    found = read_speculation({"completion_tokens": 5})
    assert (found.verify_steps, found.correct_drafts, found.histogram, found.accept_rate) == (None,) * 4


@pytest.mark.parametrize(("depth", "fine"), [(7, True), (8, True), (6, False)])
def test_overshoot_up_to_the_depth(depth: int, fine: bool) -> None:
    meta = {"completion_tokens": 64, "spec_verify_ct": 30, "spec_num_correct_drafts": 40}
    found = read_speculation(meta, depth)
    assert found.overshoot == 7
    assert (found.problems == ()) is fine


def test_more_bins_than_drafts_is_a_contradiction() -> None:
    meta = {"completion_tokens": 3, "spec_verify_ct": 2, "spec_correct_drafts_histogram": [1, 0, 0, 1]}
    assert read_speculation(meta, depth=3).problems[0].startswith("histogram_mismatch")
