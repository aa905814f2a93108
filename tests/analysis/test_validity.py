"""Each check has a record that trips it, and a sound record trips none."""

from __future__ import annotations

from typing import Any

import pytest
from factory import make_record

from analysis.study import Cell, accept_length, counted, pooled, step_ms
from analysis.validity import judge
from harness.records import Outcome, PrefillSteps, Record


def sound() -> Record:
    return make_record("native")


def edited(**changes: Any) -> Record:
    record = sound()
    for name, value in changes.items():
        setattr(record.requests[0], name, value)
    return record


def test_a_sound_record_has_no_reason() -> None:
    for arm in ("dense", "native", "windowed", "ring"):
        verdict = judge(make_record(arm))
        assert verdict.label == "ok" and verdict.text == ""


def with_clocks() -> Record:
    samples = {"sm_clock_mhz": [1980] * 5 + [1200] * 5, "throttle_reasons": [None] * 9 + ["power_cap"]}
    return make_record("native", record={"samples": samples})


def slow_log() -> Record:
    record = sound()
    record.decode_steps.accept_length = [a and min(7.0, 1.05 * a) for a in record.decode_steps.accept_length]
    return record


def looped(**point: Any) -> Record:
    record = make_record("native", **point)
    (request,) = record.requests
    request.output_ids = [*range(60), *[7] * (request.completion_tokens - 60)]
    return record


def half_the_lines() -> Record:
    record = sound()
    columns = type(record.decode_steps).model_fields
    for name in columns:
        setattr(record.decode_steps, name, getattr(record.decode_steps, name)[::2])
    return record


def dead() -> Record:
    record = make_record("native", alpha=0.0)
    assert record.requests[0].accept_histogram == [80, 0, 0, 0, 0, 0, 0]
    return record


def smaller_batch() -> Record:
    record = make_record("native", batch=4)
    record.decode_steps.running_requests = [3] * len(record.decode_steps)
    return record


def penalty(state: str) -> Record:
    audit = {"state": state, "repetition_penalty": 1.15, "judged": 400, "penalised": 100}
    return make_record("native", record={"extras": {"penalty": audit}})


CASES: dict[str, tuple[Record, str]] = {
    "failed": (make_record(outcome=Outcome.OUT_OF_MEMORY_AT_RUN, reason="full"), "invalid"),
    "prompt": (edited(prompt_tokens=8191), "invalid"),
    "no_reply": (make_record(record={"requests": []}), "invalid"),
    "cache": (edited(cached_tokens=4000), "invalid"),
    "small_cache": (edited(cached_tokens=1), "note"),
    "few_steps": (make_record(steps=6), "invalid"),
    "log_gaps": (half_the_lines(), "note"),
    "batch": (smaller_batch(), "invalid"),
    "retracted_log": (make_record(record={"log_summary": {"retracted_requests": 3}}), "invalid"),
    "retracted_reply": (edited(retractions=1), "invalid"),
    "early_stop": (make_record(ignore_eos=True, max_new_tokens=5000), "invalid"),
    "short_decode": (make_record("dense", steps=12), "note"),
    "aborted": (edited(finish_reason="abort"), "invalid"),
    "histogram_sum": (edited(accept_histogram=[80, 1, 0, 0, 0, 0, 0]), "invalid"),
    "histogram_bins": (edited(accept_histogram=[0] * 7 + [80]), "invalid"),
    "histogram_weight": (edited(accept_histogram=[80, 0, 0, 0, 0, 0, 0]), "invalid"),
    "token_count": (edited(completion_tokens=5000), "invalid"),
    "dead": (dead(), "invalid"),
    "loop": (looped(), "acceptance"),
    "agreement": (slow_log(), "note"),
    "clocks": (with_clocks(), "note"),
    "penalty_weak": (penalty("weakened"), "note"),
    "penalty_gone": (penalty("ignored"), "note"),
    "unreadable": (make_record(record={"log_summary": {"unreadable": 2}}), "note"),
}
CODES = {
    "failed": "out_of_memory_at_run", "prompt": "prompt_length", "no_reply": "no_reply", "cache": "cache_hit",
    "small_cache": "cache_hit", "few_steps": "few_steps", "log_gaps": "log_gaps",
    "batch": "batch_not_reached", "retracted_log": "retracted", "retracted_reply": "retracted",
    "early_stop": "early_stop", "short_decode": "short_decode", "aborted": "aborted",
    "histogram_sum": "histogram_mismatch", "histogram_bins": "histogram_mismatch",
    "histogram_weight": "histogram_mismatch", "token_count": "token_count_mismatch", "dead": "drafter_dead",
    "loop": "looping", "agreement": "length_disagreement", "clocks": "unstable_clocks",
    "unreadable": "unreadable_lines", "penalty_weak": "penalty_weakened", "penalty_gone": "penalty_ignored",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_check_has_a_record_that_trips_it(name: str) -> None:
    record, severity = CASES[name]
    verdict = judge(record)
    found = {reason.code: reason for reason in verdict.reasons}
    assert CODES[name] in found, verdict
    assert found[CODES[name]].severity == severity
    assert verdict.valid == (severity != "invalid")
    assert verdict.acceptance_valid == (severity == "note")
    assert all(reason.text for reason in verdict.reasons)


def test_an_honoured_penalty_is_no_finding() -> None:
    assert judge(penalty("honoured")).text == ""
    assert "25% of the places" in judge(penalty("weakened")).text


def test_throttling_is_named() -> None:
    assert "power_cap" in judge(with_clocks()).text


def test_requests_of_a_shared_prefill_may_be_shorter() -> None:
    record = make_record("native", batch=2, ignore_eos=True, max_new_tokens=300)
    lengths = [request.completion_tokens for request in record.requests]
    record.extras["shared_prefill"] = {"batches": [2, 1], "new_tokens": lengths}
    assert "early_stop" not in {reason.code for reason in judge(record).reasons}
    record.extras["shared_prefill"]["new_tokens"] = [lengths[0], lengths[1] + 1]
    assert "early_stop" in {reason.code for reason in judge(record).reasons}


def test_imported_records_need_no_reply() -> None:
    record = make_record(record={"requests": [], "source": "imported", "prefill_steps": PrefillSteps()})
    assert judge(record).valid


def test_loops_leave_step_time_in_and_acceptance_out() -> None:
    looping = Cell(looped(seed=1))
    fine = Cell(make_record(seed=2))
    assert counted([looping, fine], step_ms) == ([looping, fine], "")
    assert counted([looping, fine], accept_length) == ([fine], "")
    only = pooled([looping], accept_length)
    assert only.estimate is not None and only.flag == "output loops", "alone it is shown, but marked"


def test_invalid_records_enter_no_average() -> None:
    bad = Cell(edited(cached_tokens=4000))
    found = pooled([bad], step_ms)
    assert found.estimate is None and found.note == "cache hit"


def test_a_length_above_the_depth_is_no_measurement() -> None:
    record = sound()
    record.decode_steps.accept_length[5] = record.point.depth + 1.0
    assert judge(record).label == "invalid:length_above_depth"
