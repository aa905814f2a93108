"""What a probe inside the server wrote during one timed run, as entries of `record.extras`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from harness.engine.probes.settings import file_name
from harness.errors import RecordError
from harness.points import Point

Line = Mapping[str, Any]
Summary = Callable[[Sequence[Line], Point], dict[str, Any]]

# Module of each probe's `summarise(lines, point)`; imported only where it is needed.
_SUMMARIES = {
    "trace": "harness.measure.phases",
    "decision": "harness.measure.decision",
    "attention_mass": "harness.measure.attention_mass",
}
# The writer inside the server flushes after half a second of rest.
_SETTLE_S = 5.0
_POLL_S = 0.2


def collect(kind: str, directory: Path, began_ns: int, ended_ns: int, point: Point) -> dict[str, Any]:
    """Entries of `record.extras` from the lines that rank 0 wrote during a run.

    Every rank does the same work on its share; rank 0 stands for all.

    Args:
        began_ns, ended_ns: `time.monotonic_ns()` around the run; the server's lines carry the same clock.

    Raises:
        RecordError: the probe left nothing, or something that cannot be read.
    """
    path = directory / file_name(kind, 0)
    lines = _settled(path, began_ns, ended_ns)
    if not lines:
        raise RecordError(
            f"the server's {kind} probe left nothing during the run: see {path} and the server's log"
        )
    return summary(kind, lines, point)


def summary(kind: str, lines: Sequence[Line], point: Point) -> dict[str, Any]:
    """Entries of `record.extras` from a run's lines.

    Raises:
        RecordError: the probe stopped with an error, or a line has another shape than the probe's.
    """
    summarise: Summary = import_module(_SUMMARIES[kind]).summarise
    try:
        found = summarise(lines, point)
        orjson.dumps(found)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise RecordError(
            f"a line of the {kind} probe has another shape ({type(error).__name__}: {error}): measure again"
        ) from error
    return found


def read_lines(path: Path, began_ns: int, ended_ns: int) -> list[dict[str, Any]]:
    """The lines whose `monotonic_ns` lies in the run, in file order; empty without a file.

    A last line without its end is one that the writer is still at.

    Raises:
        RecordError: a line is no JSON object with `monotonic_ns`.
    """
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    found = []
    for number, raw in enumerate(whole.splitlines(), start=1):
        try:
            line = orjson.loads(raw)
            inside = began_ns <= line["monotonic_ns"] <= ended_ns
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise RecordError(
                f"{path}:{number} is no line of a probe ({error}): measure the point again"
            ) from error
        if inside:
            found.append(line)
    return found


def _settled(path: Path, began_ns: int, ended_ns: int) -> list[dict[str, Any]]:
    """The run's lines, once no more arrive: the writer may lag behind the reply."""
    deadline = time.monotonic() + _SETTLE_S
    lines = read_lines(path, began_ns, ended_ns)
    while True:
        time.sleep(_POLL_S * 4)
        before, lines = len(lines), read_lines(path, began_ns, ended_ns)
        if (lines and len(lines) == before) or time.monotonic() > deadline:
            return lines
