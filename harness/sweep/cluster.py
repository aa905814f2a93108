"""What became of a sweep's cluster jobs: one sentence for each that left a point without a record."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.host.commands import output_of
from harness.sweep.job_states import judge_job

_FOLDER = re.compile(r"(?P<job>\d+)(_(?P<task>\d+))?$")
_SCONTROL = re.compile(r"\b(?P<name>JobState|ExitCode)=(?P<value>\S+)")
_TIMEOUT_S = 30.0
Run = Callable[[Sequence[str]], str]


def run_quietly(command: Sequence[str]) -> str:
    """A command's output; empty where it has none."""
    return output_of(command, _TIMEOUT_S) or ""


def job_reasons(sweep_directory: Path, run: Run = run_quietly) -> dict[int, str]:
    """Why each job of a submitit sweep left no record, by its number in the sweep.

    The scheduler is asked first through its accounting, then through the controller, which forgets soon.
    submitit's result files are looked for and never opened: they are pickles.

    Args:
        sweep_directory: Hydra's directory of the sweep; jobs lie in its `.submitit`.
        run: runs a command and returns its output, empty where it failed.

    Returns:
        A sentence for each job that submitit submitted; empty where there was no cluster.
    """
    reasons = {}
    for folder in sorted((sweep_directory / ".submitit").glob("*")):
        match = _FOLDER.match(folder.name)
        if match is None:
            continue
        state, status = _ask(folder.name, run)
        returned = any(folder.glob("*_result.pkl"))
        verdict = judge_job(state, status, "COMPLETED" if returned else None, has_result=False)
        again = "; run the same command again" if verdict.retryable else ""
        reasons[int(match["task"] or 0)] = (
            f"cluster job {folder.name} ({verdict.state}): {verdict.reason}{again}; its output is in {folder}"
        )
    return reasons


def _ask(job: str, run: Run) -> tuple[str | None, str | None]:
    """(state, exit status) of a job as SLURM says them; (None, None) where it does not know the job."""
    rows = run(["sacct", "-n", "-P", "-X", "-o", "State,ExitCode", "-j", job]).split("\n")
    if rows and "|" in rows[0]:
        state, _, status = rows[0].partition("|")
        return state, status
    told = {m["name"]: m["value"] for m in _SCONTROL.finditer(run(["scontrol", "show", "job", "-o", job]))}
    return told.get("JobState"), told.get("ExitCode")
