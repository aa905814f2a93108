"""Outputs of pairs of arms: where they part, how near the target was, and the exact test over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from factory import make_record

from analysis.equivalence import Setting, arm_pairs, comparisons, divergences, typical_margins
from analysis.study import Group, Study
from analysis.tables import frame
from analysis.tables.lossless import reading
from harness.records import Outcome, Record

ARMS = ("dense", "native", "windowed", "ring")
TOKENS = 40


def output(seed: int, parts_at: int | None = None, says: int = 999) -> list[int]:
    ids = [1000 * seed + i for i in range(TOKENS)]
    return ids if parts_at is None else [*ids[:parts_at], *[says] * (TOKENS - parts_at)]


def made(arm: str, ids: Sequence[int], seed: int = 0, margins: Sequence[float] = (), **point: Any) -> Record:
    extras = {"output_margins": list(margins)} if margins else {}
    request = {"output_ids": list(ids), "completion_tokens": len(ids)}
    return make_record(arm, seed=seed, request=request, record={"extras": extras}, **point)


def group(records: Sequence[Record]) -> Group:
    (only,) = Study(records).groups
    return only


def study(differing: dict[str, dict[int, int]], prompts: int = 6, **point: Any) -> list[Record]:
    """Four arms on some prompts; `differing`: where an arm leaves the common output, {arm: {seed: at}}."""
    return [
        made(arm, output(seed, differing.get(arm, {}).get(seed), says=900 + i), seed, **point)
        for seed in range(prompts)
        for i, arm in enumerate(ARMS)
    ]


def test_identical_outputs() -> None:
    pairs = arm_pairs(group(study({})))
    assert [(p.first, p.second) for p in pairs] == [
        ("dense", "native"), ("dense", "windowed"), ("dense", "ring"),
        ("native", "windowed"), ("native", "ring"), ("windowed", "ring"),
    ]  # fmt: skip
    assert {(p.prompts, p.identical, p.tokens, p.first_differences) for p in pairs} == {
        (6, 6, 6 * TOKENS, ())
    }


def test_where_outputs_part() -> None:
    pairs = {(p.first, p.second): p for p in arm_pairs(group(study({"ring": {2: 7, 4: 30}})))}
    assert pairs["native", "ring"].first_differences == (7, 30)
    assert pairs["native", "ring"].identical == 4
    assert pairs["native", "windowed"].identical == 6


def test_settings_are_not_mixed() -> None:
    """A difference under a penalty, or in bf16, must not be charged to fp32 without one."""
    records = (
        study({}, dtype="float32", kv_dtype="float32", repetition_penalty=1.0)
        + study({"ring": {0: 3}}, repetition_penalty=1.0)
        + study({"native": {0: 5}, "ring": {1: 5}}, repetition_penalty=1.15)
    )
    shares = {
        (p.setting.precision, p.setting.penalty): p.identical
        for p in arm_pairs(group(records))
        if (p.first, p.second) == ("native", "ring")
    }
    assert shares == {("float32", 1.0): 6, ("bfloat16", 1.0): 5, ("bfloat16", 1.15): 4}


def test_prompts_of_other_tokens_are_not_compared() -> None:
    """One seed may give two texts: on another interpreter, from other sources."""
    records = study({"ring": {0: 3}}, prompts=2)
    other = next(r for r in records if r.point.arm == "ring" and r.point.seed == 0)
    assert other.input is not None
    other.input = other.input.model_copy(update={"sha256_ids": "1" * 64})
    found = {(p.first, p.second): (p.prompts, p.identical) for p in arm_pairs(group(records))}
    assert found["native", "ring"] == (1, 1) and found["dense", "native"] == (2, 2)


def test_outputs_of_another_server_are_not_compared() -> None:
    records = study({})
    for record in records:
        if record.point.arm == "ring":
            record.server.arguments = {"speculative_draft_window_size": 4032}
    assert {arm for p in arm_pairs(group(records)) for arm in (p.first, p.second)} == set(ARMS) - {"ring"}


def test_by_input() -> None:
    records = study({}, task="vt") + study({"ring": {0: 3}}, task="cwe")
    found = {(p.task, p.second): p.identical for p in arm_pairs(group(records), by_input=True)}
    assert (found["vt", "ring"], found["cwe", "ring"]) == (6, 5)


def test_other_depths_windows_batches_and_probes_are_left_out() -> None:
    odd = [
        made("native", output(0, 1), depth=3), made("ring", output(0, 1), window_tokens=64),
        made("ring", output(0, 1), batch=2), made("ring", output(0, 1), temperature=0.7),
        made("native", output(0, 1), probe="decision"),
        made("ring", output(0, 1), outcome=Outcome.SERVER_DIED, reason="gone", repeat=1),
    ]  # fmt: skip
    assert {p.identical for p in arm_pairs(group(study({}) + odd))} == {6}


def test_margin_after_the_common_tokens() -> None:
    """The margin comes from a record that wrote the same tokens up to where the pair parts."""
    scale = [5.0 + i / 100 for i in range(TOKENS)]
    records = study({"native": {0: 8}, "ring": {0: 20}}, prompts=1)
    native = [0.25 if i == 8 else m for i, m in enumerate(scale)]
    # Dense never wrote what native and ring share beyond token 8 - here they share 8 tokens with it.
    records.append(made("dense", output(0), margins=[0.125 if i == 8 else m for i, m in enumerate(scale)],
                        probe="margins"))  # fmt: skip
    records.append(made("native", output(0, 8, says=901), margins=native, probe="margins"))
    found = {(c.first, c.second): c for c in comparisons(group(records))}
    assert found["dense", "native"].margin == 0.125
    assert found["dense", "ring"].margin == scale[20]
    assert found["native", "ring"].first_difference == 8
    assert typical_margins(group(records))[Setting(8192, "bfloat16", 1.15)] == pytest.approx(5.2, abs=0.02)


def test_a_margin_of_other_tokens_is_not_used() -> None:
    records = study({"native": {0: 2}, "windowed": {0: 2}, "ring": {0: 10}}, prompts=1)
    for record in records:
        if record.point.arm == "windowed":
            record.requests[0].output_ids[2:] = output(0, 2, says=901)[2:6] + [7] * (TOKENS - 6)
    records.append(made("dense", output(0), margins=[1.0] * TOKENS, probe="margins"))
    found = {(c.first, c.second): c for c in comparisons(group(records))}
    assert found["native", "windowed"].first_difference == 6
    assert found["native", "windowed"].margin is None, "dense parted from both at token 2"


def test_a_run_with_margins_stands_in_for_a_plain_one() -> None:
    records = [
        made("dense", output(0), margins=[1.0] * TOKENS, probe="margins"),
        made("native", output(0, 3)),
    ]
    (only,) = comparisons(group(records))
    assert (only.first_difference, only.margin) == (3, 1.0)


def test_exact_test() -> None:
    """One-sided McNemar: n telling prompts all against the window give 2^-n."""
    records = study({"native": {0: 4}, "ring": {0: 4, 1: 4, 2: 4, 3: 4, 4: 4, 5: 4}}, prompts=8)
    found = {d.arm: d for d in divergences(group(records))}
    ring = found["ring"]
    # On prompt 0 both pairs differ: each arm says something else there.
    assert (ring.prompts, ring.both, ring.only_baseline, ring.only_window, ring.neither) == (8, 1, 0, 5, 2)
    assert ring.p == pytest.approx(0.5**5) and ring.least_p == 0.5**5
    assert reading(ring) == "more often than the noise"
    windowed = found["windowed"]
    assert (windowed.both, windowed.only_window) == (1, 0) and windowed.p == 1.0
    assert reading(windowed) == "the same prompts differ"


def test_few_prompts_are_not_read_as_agreement() -> None:
    (ring,) = [d for d in divergences(group(study({"ring": {0: 4, 1: 4}}))) if d.arm == "ring"]
    assert ring.p == 0.25
    assert reading(ring) == "cannot be told: the pairs differ on 2 of 6 prompts, 5 are needed"


def test_table_rows() -> None:
    records = study({"ring": {2: 7}}, repetition_penalty=1.0)
    rows = frame("lossless", records).set_index("pair")
    assert rows.loc["native / ring", "identical_percent"] == pytest.approx(100 * 5 / 6)
    assert rows.loc["native / ring", "first_difference"] == "median 7, earliest 7"
    assert rows.loc["native / ring", "margin_verdict"] == "not recorded"
    assert rows.loc["dense / native", "first_difference"] == "none"
    assert set(rows["penalty"]) == {"none"}


@pytest.mark.parametrize("kept", [0, 2])
def test_outputs_without_all_their_tokens_are_not_identical(kept: int) -> None:
    records = study({})
    for record in records:
        record.requests[0].output_ids = record.requests[0].output_ids[:kept]
    assert arm_pairs(group(records)) == [] and divergences(group(records)) == []
