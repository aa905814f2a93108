"""Profilers around a server: the words that start it under nsys, and the export of nsys' reports.

The server starts and stops a capture itself, at the first decode steps of a request that asks for it (see
`harness.measure.profile`): nothing else is captured, and prefill never is.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from harness.errors import ServerError

VARIABLES = {"SGLANG_PROFILE_V2": "1"}
"""Lets the server's profiler be asked for decode steps alone."""
REPORT = "decode"

_POLL_S = 0.5


def nsys_words(directory: Path) -> list[str]:
    """The words before a server's command that let nsys follow it; reports go to `directory`.

    Kernels inside CUDA graphs are traced one by one, and each captured range gives a report of its own.
    """
    return [
        "nsys", "profile", "--trace=cuda,nvtx", "--cuda-graph-trace=node", "--sample=none",
        "--cpuctxsw=none", "--trace-fork-before-exec=true", "--capture-range=cudaProfilerApi",
        "--capture-range-end=repeat", "--kill=none", "--force-overwrite=true",
        f"--output={directory / REPORT}",
    ]  # fmt: skip


def newest(directory: Path, pattern: str, not_in: frozenset[Path], timeout_s: float) -> Path:
    """The file of that pattern that appeared since `not_in`, once it has stopped growing.

    Raises:
        ServerError: none appeared in time.
    """
    deadline = time.monotonic() + timeout_s
    size = -1
    while True:
        fresh = sorted(set(directory.glob(pattern)) - not_in, key=lambda path: path.stat().st_mtime_ns)
        if fresh:
            before, size = size, fresh[-1].stat().st_size
            if size and size == before:
                return fresh[-1]
        if time.monotonic() > deadline:
            raise ServerError(f"the profiler left no {pattern} in {directory} within {timeout_s:.0f} s")
        time.sleep(_POLL_S)


def export(report: Path, timeout_s: float = 600.0) -> Path:
    """Export an nsys report to SQLite beside it.

    Raises:
        ServerError: nsys is not there, failed, or took too long.
    """
    target = report.with_suffix(".sqlite")
    command = ["nsys", "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", str(report)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerError(f"nsys did not export {report}: {error}") from error
    if done.returncode != 0 or not target.exists():
        raise ServerError(f"nsys did not export {report}: {(done.stderr or done.stdout).strip()[-300:]}")
    return target
