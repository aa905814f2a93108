"""Profiler traces: what an nsys export or a torch trace says of the phases and kernels of decode iterations.

A trace may lack any table, column or kind of event. What it has is used; what it lacks is named.
"""

from __future__ import annotations

from pathlib import Path

from analysis.traces.model import Trace
from harness.errors import InputError
from harness.regular import require_regular

_SQLITE = b"SQLite format 3\x00"


def read_trace(path: Path) -> Trace:
    """Read an nsys SQLite export or a torch trace (JSON, gzipped or not), told apart by their first bytes.

    Raises:
        InputError: no such file, or neither of the two.
    """
    from analysis.traces import nsys, torch_trace  # noqa: PLC0415  (they import this package's model)

    try:
        with require_regular(path).open("rb") as file:
            start = file.read(len(_SQLITE))
    except OSError as error:
        raise InputError(f"cannot read the trace {path}: {error.strerror}") from error
    if start == _SQLITE:
        return nsys.read(path)
    if path.suffix == ".nsys-rep":
        raise InputError(f"{path} is nsys' own format: export it with `nsys export --type sqlite {path}`")
    return torch_trace.read(path)
