"""Means of the trace's lines: which iterations count, and that phases add up to them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from analysis.extras import Phases
from harness.errors import RecordError
from harness.measure.phases import steady, summarise

POINT = SimpleNamespace(batch=1)


def line(step, *, since=100, worker=80, batch=1, parts=None, accepted=(2,), context=50):
    return {
        "step": step, "since_previous_ns": since, "worker_ns": worker, "batch": batch, "source": "host",
        "parts_ns": parts or {"verify_forward": 40, "sampling": 5, "draft": 30, "unattributed": 5},
        "accepted": list(accepted), "context_tokens": context, "monotonic_ns": step,
    }  # fmt: skip


def test_phases_add_up_to_the_iteration_from_begin_to_begin():
    found = summarise([line(step) for step in range(1, 12)], POINT)["phases"]
    phases = Phases.model_validate(found)
    assert phases.iterations == 8  # 11 lines: the last has no successor, and the first two are left out
    assert (phases.verify_base_ms, phases.verify_overhead_ms, phases.draft_ms) == pytest.approx(
        (4e-5, 5e-6, 3e-5)
    )
    assert phases.unattributed_ms == pytest.approx(2.5e-5)  # 5 inside the worker, 20 between two calls of it
    assert phases.iteration_ms == pytest.approx(1e-4)
    assert sum(phases.parts_ms.values()) == pytest.approx(phases.iteration_ms)
    assert phases.accepted_mean == 2
    assert phases.overhead_percent == pytest.approx(100 * 35 / 40)


def test_an_iteration_without_a_direct_successor_has_no_length():
    lines = [line(1), line(2), line(3), line(4, since=None), line(6), line(7)]
    # 3 -> 4 follows something else, 4 -> 6 leaves a step out.
    assert [one.iteration_ns for one in steady(lines, 1)] == [100]


def test_stalls_are_left_out_as_for_step_times():
    lines = [line(step, since=10_000 if step == 6 else 100) for step in range(1, 12)]
    assert {one.iteration_ns for one in steady(lines, 1)} == {100}


def test_only_the_asked_batch_counts_or_the_largest_that_ran_long_enough():
    lines = [line(step, batch=4 if step < 4 else 2 if step < 12 else 1) for step in range(1, 20)]
    # Batch 4 ran three times only.
    assert len(steady(lines, 4)) == 8 - 2
    assert len(steady(lines, 1)) == 7 - 2


def test_draft_forwards_are_listed_in_order_and_extend_and_index_are_told():
    parts = {f"draft_forward.{n}": 10 + n for n in range(12)} | {
        "draft_index": 3, "draft_extend_index": 4, "draft_extend_forward": 9, "verify_forward": 20,
    }  # fmt: skip
    found = summarise([line(step, parts=parts, worker=300, since=320) for step in range(1, 9)], POINT)[
        "phases"
    ]
    assert found["draft_forward_ms"] == pytest.approx([(10 + n) / 1e6 for n in range(12)])
    assert found["draft_index_ms"] == pytest.approx(7e-6)
    assert found["draft_extend_ms"] == pytest.approx(13e-6)
    assert found["draft_ms"] == pytest.approx((sum(range(10, 22)) + 16) / 1e6)


def test_a_part_of_an_unknown_name_is_unattributed():
    found = summarise([line(step, parts={"verify_forward": 40, "novel": 30}) for step in range(1, 9)], POINT)
    assert found["phases"]["unattributed_ms"] == pytest.approx(6e-5)


@pytest.mark.parametrize("lines", [[line(1)], [line(1), line(2), line(3)], [{**line(1), "batch": "x"}]])
def test_too_few_lines_are_no_measurement(lines):
    with pytest.raises(RecordError):
        summarise(lines, POINT)


def test_a_line_of_another_shape_is_named():
    lines = [line(step) for step in range(1, 9)]
    del lines[4]["parts_ns"]
    with pytest.raises(RecordError, match="another shape"):
        summarise(lines, POINT)
