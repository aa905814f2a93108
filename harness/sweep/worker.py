"""The process of one boot: `python -m harness.sweep.worker --plan FILE --boot ID --parent PID`.

A process of its own, so that nothing that kills it (memory, a crash in native code, `sys.exit` somewhere)
reaches the other boots. It stops its server and ends when its parent is gone.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import traceback
from types import FrameType

from rich.console import Console

from harness.commandline import os_error_text, place
from harness.errors import HarnessError
from harness.printable import printable
from harness.sweep.course import course_of
from harness.sweep.execute import record_missing, run_planned
from harness.sweep.plan import Plan, PlannedBoot
from harness.sweep.planfile import from_json
from harness.view.progress import ProgressView

STOPPED = 143
UNRECORDED = 74
_stop_asked = threading.Event()


def main(arguments: list[str] | None = None) -> int:
    """Run the boot; returns 0 whenever each of its points has a record or is another harness's."""
    parser = argparse.ArgumentParser(prog="python -m harness.sweep.worker", description=__doc__)
    parser.add_argument("--plan", type=place, required=True)
    parser.add_argument("--boot", required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _on_stop)
    threading.Thread(target=_watch_parent, args=(options.parent,), daemon=True).start()
    console = Console(stderr=True)
    plan = from_json(options.plan.read_bytes())
    boot = plan.boot(options.boot)
    try:
        return _run(plan, boot, console)
    except KeyboardInterrupt:
        return 130
    except (HarnessError, OSError) as error:  # not even the failure can be recorded: a full disk
        text = os_error_text(error) if isinstance(error, OSError) else str(error)
        console.print(printable(f"error: {text}"), style="red", markup=False, highlight=False, soft_wrap=True)
        return UNRECORDED


def _run(plan: Plan, boot: PlannedBoot, console: Console) -> int:
    try:
        with ProgressView(course_of(plan), console) as view:
            for text in run_planned(plan, boot, view):
                console.print(printable(f"left out: {text}"), markup=False, highlight=False, soft_wrap=True)
    except SystemExit as error:
        if _stop_asked.is_set():
            return STOPPED
        _record_rest(plan, boot, f"something called sys.exit({error.code}) in the harness", console)
    except HarnessError as error:
        _record_rest(plan, boot, str(error), console)
    except Exception as error:  # noqa: BLE001  (a bug in one boot must neither stop nor hide)
        console.print(traceback.format_exc(), markup=False, highlight=False, soft_wrap=True)
        _record_rest(plan, boot, f"the harness failed: {type(error).__name__}: {error}", console)
    return 0


def _record_rest(plan: Plan, boot: PlannedBoot, reason: str, console: Console) -> None:
    for record in record_missing(plan, boot.to_run, reason):
        console.print(
            printable(f"{record.point.label}: {record.outcome} - {record.reason}"),
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


def _on_stop(number: int, frame: FrameType | None) -> None:
    if not _stop_asked.is_set():
        _stop_asked.set()
        raise SystemExit(STOPPED)


def _watch_parent(parent: int) -> None:
    """A killed parent cannot tell: stop as if asked to."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
