"""A cluster job counts only when the scheduler, the job itself and its result agree."""

from __future__ import annotations

import pytest

from harness.sweep.job_states import JobState, judge_job


@pytest.mark.parametrize(
    ("slurm", "exit_status", "inner", "result", "state"),
    [
        ("COMPLETED", 0, "COMPLETED", True, "ok"),
        ("COMPLETED", "0:0", "completed", True, "ok"),
        (None, None, "COMPLETED", True, "ok"),
        ("COMPLETED", 0, "FAILED", False, "failed"),
        ("COMPLETED", 0, "COMPLETED", False, "failed:no_result"),
        ("COMPLETED", 0, None, False, "failed:no_result"),
        ("TIMEOUT", 0, None, False, "timeout:retryable"),
        ("DEADLINE", 0, None, False, "timeout:retryable"),
        ("PREEMPTED", 0, None, False, "preempted:retryable"),
        ("NODE_FAIL", 0, None, False, "node_lost:retryable"),
        ("CANCELLED", 0, None, False, "cancelled"),
        ("CANCELLED by 1000", "0:15", None, False, "cancelled"),
        ("CANCELLED+", "0:0", None, False, "cancelled"),
        ("OUT_OF_MEMORY", 137, None, False, "oom_or_killed"),
        ("OUT_OF_ME+", "0:125", None, False, "oom_or_killed"),
        ("FAILED", 137, None, False, "oom_or_killed"),
        ("FAILED", "0:9", None, False, "oom_or_killed"),
        ("FAILED", 1, None, False, "failed"),
        ("COMPLETED", 2, None, False, "failed"),
        ("FAILED", 1, None, True, "partial:do_not_use"),
        ("TIMEOUT", 0, None, True, "partial:do_not_use"),
        ("COMPLETED", 0, "FAILED", True, "partial:do_not_use"),
        ("COMPLETED", 0, None, True, "partial:do_not_use"),
        ("RUNNING", None, None, True, "running"),
        ("COMPLETING", None, None, False, "running"),
        ("PENDING", None, None, False, "pending"),
        ("REQUEUED", None, None, False, "pending"),
        (None, None, None, False, "unknown"),
        ("NOVEL_STATE", "garbage", None, False, "unknown"),
    ],
)
def test_verdict(slurm, exit_status, inner, result, state):
    verdict = judge_job(slurm, exit_status, inner, result)
    assert verdict.state == state
    assert verdict.usable == (state == "ok")
    assert verdict.retryable == state.endswith(":retryable")
    assert bool(verdict.reason) != verdict.usable


def test_one_bad_job_hides_no_other():
    verdicts = [
        judge_job("COMPLETED", 0, "COMPLETED", True),
        judge_job("FAILED", 1, None, False),
        judge_job("COMPLETED", 0, "COMPLETED", True),
    ]
    assert [v.usable for v in verdicts] == [True, False, True]
    assert verdicts[1].state is JobState.FAILED
