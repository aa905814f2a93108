"""What a hung server was doing: the Python stacks of its processes, written beside its log."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

_TIMEOUT_S = 20.0


def dump_stacks(processes: Iterable[psutil.Process], path: Path) -> Path | None:
    """Write the stacks of those processes that are Python's with py-spy.

    Nothing is paused (`--nonblocking`), so a process that is stopped already can be read as well. Never
    raises: a stall is recorded with or without its stacks.

    Args:
        processes: the server's.
        path: the file to write.

    Returns:
        `path`, or None where no process could be read (py-spy missing, or tracing not permitted).
    """
    program = _py_spy()
    if program is None:
        return None
    parts = []
    for process in processes:
        try:
            name = f"{process.pid} {process.name()} ({process.status()})"
            made = subprocess.run(
                [program, "dump", "--nonblocking", "--pid", str(process.pid)],
                check=False, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S,
            )  # fmt: skip
        except (psutil.Error, OSError, subprocess.SubprocessError):
            continue
        if made.returncode == 0:
            parts.append(f"=== {name}\n{made.stdout.strip()}\n")
    if not parts:
        return None
    try:
        path.write_text("\n".join(parts), encoding="utf-8")
    except OSError:
        return None
    return path


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")
