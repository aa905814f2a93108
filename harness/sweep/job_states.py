"""What became of a cluster job: the scheduler's state, the job's own word and the result file together.

None of the three is enough. SLURM and submitit report a job as completed whose function failed; a job may be
completed and have written nothing; a failed one may leave half a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    """Verdict on one job."""

    OK = "ok"
    FAILED = "failed"
    NO_RESULT = "failed:no_result"
    TIMEOUT = "timeout:retryable"
    PREEMPTED = "preempted:retryable"
    NODE_LOST = "node_lost:retryable"
    CANCELLED = "cancelled"
    KILLED = "oom_or_killed"
    PARTIAL = "partial:do_not_use"
    PENDING = "pending"
    RUNNING = "running"
    UNKNOWN = "unknown"


_RETRYABLE = {JobState.TIMEOUT, JobState.PREEMPTED, JobState.NODE_LOST}
_WAITING = {
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT",
}  # fmt: skip
_ACTIVE = {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
_ENDED = {
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "PREEMPTED": JobState.PREEMPTED,
    "NODE_FAIL": JobState.NODE_LOST,
    "BOOT_FAIL": JobState.NODE_LOST,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
    "OUT_OF_MEMORY": JobState.KILLED,
}
_ALIASES = {"OUT_OF_ME": "OUT_OF_MEMORY", "CANCELED": "CANCELLED"}
_KILL_STATUS = {137, -9}


@dataclass(frozen=True)
class JobVerdict:
    """A job's verdict.

    Attributes:
        state: the verdict.
        reason: one sentence; empty for `ok`.
    """

    state: JobState
    reason: str

    @property
    def usable(self) -> bool:
        """Whether the job's result counts."""
        return self.state is JobState.OK

    @property
    def retryable(self) -> bool:
        """Whether the same job may succeed when it is submitted again."""
        return self.state in _RETRYABLE


def judge_job(
    scheduler_state: str | None,
    exit_status: int | str | None,
    inner_status: str | None,
    has_result: bool,
) -> JobVerdict:
    """The verdict on one job.

    Args:
        scheduler_state: SLURM's state as squeue or sacct print it (`CANCELLED by 1000`, `OUT_OF_ME+`); None
            where the scheduler no longer knows the job.
        exit_status: exit status, or sacct's `status:signal`; None where unknown.
        inner_status: what the job's own return says (`COMPLETED`, `FAILED`); None where it returned nothing.
        has_result: whether its result file is there.
    """
    state = _normalised(scheduler_state)
    inner = (inner_status or "").strip().upper()
    if state in _WAITING:
        return JobVerdict(JobState.PENDING, f"the job waits ({state})")
    if state in _ACTIVE:
        return JobVerdict(JobState.RUNNING, f"the job runs ({state})")
    verdict = _how_it_ended(state, _status(exit_status), inner, has_result)
    if has_result and verdict.state is not JobState.OK:
        return JobVerdict(
            JobState.PARTIAL,
            f"a result file is there but {verdict.reason}: it may be incomplete, do not use it",
        )
    return verdict


def _how_it_ended(state: str, exit_status: int | None, inner: str, has_result: bool) -> JobVerdict:
    if state in _ENDED:
        return JobVerdict(_ENDED[state], f"the scheduler says {state}")
    if exit_status in _KILL_STATUS:
        return JobVerdict(JobState.KILLED, "a process was killed (SIGKILL), often for want of memory")
    if state == "FAILED" or (exit_status not in (None, 0)):
        return JobVerdict(JobState.FAILED, f"the job ended with exit status {exit_status}")
    if inner and inner != "COMPLETED":
        return JobVerdict(JobState.FAILED, f"the job's own status is {inner}")
    return _without_failure(state, inner, has_result)


def _without_failure(state: str, inner: str, has_result: bool) -> JobVerdict:
    if not has_result:
        if state == "COMPLETED" or inner:
            return JobVerdict(JobState.NO_RESULT, "the job completed and left no result")
        return JobVerdict(JobState.UNKNOWN, "the scheduler does not know the job and it left nothing")
    if not inner:
        return JobVerdict(JobState.FAILED, "the job never returned")
    return JobVerdict(JobState.OK, "")


def _normalised(state: str | None) -> str:
    """`CANCELLED by 1000` -> CANCELLED, `OUT_OF_ME+` -> OUT_OF_MEMORY."""
    words = (state or "").strip().upper().split()
    if not words:
        return "UNKNOWN"
    cut = words[0].rstrip("+")
    if cut in _ALIASES:
        return _ALIASES[cut]
    if words[0].endswith("+"):
        known = [*_ENDED, *_WAITING, *_ACTIVE, "COMPLETED", "FAILED"]
        return next((name for name in known if name.startswith(cut)), cut)
    return cut


def _status(value: int | str | None) -> int | None:
    """sacct prints `status:signal`; a signal counts as 128 + its number, as in a shell."""
    if value is None or isinstance(value, int):
        return value
    status, _, number = value.strip().partition(":")
    try:
        return 128 + int(number) if number and int(number) else int(status)
    except ValueError:
        return None
