"""Run boots of a plan one after the other, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from harness.commandline import terminable
from harness.measure.ladder import runs
from harness.sweep.execute import record_missing, recorded_since
from harness.sweep.locks import PointLocks
from harness.sweep.plan import Plan, PlannedBoot, PlannedPoint

_STOP_SLACK_S = 60.0
_FUTILE_DEATHS = 2


def run_boots(plan: Plan, plan_path: Path, boots: Iterable[PlannedBoot]) -> None:
    """Run boots of a plan. However the process of one ends, the next runs; every point gets a record.

    Raises:
        KeyboardInterrupt, SystemExit: this process was asked to stop; the running server is down by then.
    """
    with terminable():
        for boot in boots:
            _run_boot(plan, plan_path, boot)


def _run_boot(plan: Plan, plan_path: Path, boot: PlannedBoot) -> None:
    points = boot.to_run
    futile = 0
    while True:
        before = len(_missing(plan, points))
        code = _spawn(plan_path, boot)
        missing = _missing(plan, points)
        if code == 0 or not missing:
            return
        # Its process died. The run it was in is named; the others get another process.
        futile = futile + 1 if len(missing) == before else 0
        first = runs([planned.point for planned in missing])[0][0]
        lost = [p for p in missing if futile >= _FUTILE_DEATHS or p.point.key == first.key]
        record_missing(plan, lost, f"the process of this boot {_how(code)}; see its output above")


def _missing(plan: Plan, points: Iterable[PlannedPoint]) -> list[PlannedPoint]:
    """Points without a record of this run that no other harness works on."""
    locks = PointLocks(Path(plan.results))
    left = [planned for planned in points if recorded_since(plan, planned) is None]
    return [planned for planned in left if locks.holder(planned.point.key) is None]


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit status {code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
        hint = " (the kernel's out-of-memory killer does that)" if -code == signal.SIGKILL else ""
        return f"was killed by {name}{hint}"
    return f"was killed by signal {-code}"


def _spawn(plan_path: Path, boot: PlannedBoot) -> int:
    """One worker process; its exit status, negative for a signal."""
    command = [sys.executable, "-m", "harness.sweep.worker", "--plan", str(plan_path.absolute())]
    command += ["--boot", boot.boot_id, "--parent", str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except BaseException:
        # Asked to stop: the worker takes its server down first.
        process.terminate()
        try:
            process.wait(boot.server.stop_timeout_s + _STOP_SLACK_S)
        except BaseException:  # also a second Ctrl-C
            process.kill()
            process.wait()
            raise
        raise
