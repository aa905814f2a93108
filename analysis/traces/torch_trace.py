"""Reads the Chrome trace (JSON, gzipped or not) that torch's profiler exports, one process a file.

With a GPU the work is its kernels and copies, joined to their launch by correlation id. Without one the work
is the operators: the outermost of each thread, since an inner one's time is part of it.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from analysis.traces.model import Kind, Launch, Range, Trace, Work
from harness.errors import InputError
from harness.regular import read_regular

# Categories by torch version, in lower case.
_RANGES = frozenset({"user_annotation"})
_OPERATORS = frozenset({"cpu_op", "operator"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "runtime"})
_DEVICE: dict[str, Kind] = {
    "kernel": "kernel", "gpu_memcpy": "memcpy", "memcpy": "memcpy", "gpu_memset": "memset",
    "memset": "memset",
}  # fmt: skip


def read(path: Path) -> Trace:
    """Read one trace; whatever it lacks is named in it.

    Raises:
        InputError: the file is damaged, or no trace.
    """
    events, version = _events(path)
    found = Trace("torch", version=version)
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("ph") != "X":
            continue
        if not _is_sound(event):
            found.ignore("damaged event")
        else:
            by_kind.setdefault(str(event.get("cat", "")).lower(), []).append(event)
    ids = _Ids()

    def pick(kinds: Iterable[str]) -> list[dict[str, Any]]:
        return [event for kind in kinds for event in by_kind.get(kind, ())]

    for event in pick(_RANGES):
        start, end = _span(event)
        process, thread = ids.of(event)
        found.ranges.append(Range(str(event.get("name", "")), start, end, process, thread))
    if not found.ranges:
        found.missing.append("no ranges in this trace (no user_annotation events)")
    if any(by_kind.get(kind) for kind in _DEVICE):
        _add_device_work(found, {kind: by_kind.get(kind, []) for kind in _DEVICE}, pick(_CALLS), ids)
    else:
        found.missing.append("no GPU kernels in this trace: the work is the operators")
        operators = pick(_OPERATORS)
        if not operators:
            found.missing.append("no operators in this trace (no cpu_op events)")
        _add_operators(found, operators, ids)
    if not found.ranges and found.attributable:
        found.attribution = "unavailable:no_ranges"
    return found


def _events(path: Path) -> tuple[list[dict[str, Any]], str]:
    try:
        raw = read_regular(path)
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        body = _parsed(raw)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a torch trace ({error}): profile again") from error
    events = body.get("traceEvents") if isinstance(body, dict) else body
    if not isinstance(events, list):
        raise InputError(f"{path} is no trace: it has no list of traceEvents")
    version = str(body.get("schemaVersion", "")) if isinstance(body, dict) else ""
    return [event for event in events if isinstance(event, dict)], version


def _parsed(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        # Traces may hold NaN and names that are no UTF-8, which orjson refuses.
        return json.loads(raw.decode("utf-8", "replace"), strict=False)


class _Ids:
    """Numbers for processes and threads, which traces name by numbers or by text."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def of(self, event: dict[str, Any]) -> tuple[int, int]:
        process, thread = event.get("pid"), event.get("tid")
        return self._number(process), self._number((process, thread))

    def _number(self, key: Any) -> int:
        return self._known.setdefault(key, len(self._known))


def _is_sound(event: dict[str, Any]) -> bool:
    """Whether an event has a time, a length from 0 on, and plain names for process, thread and launch."""
    names = (event.get("pid"), event.get("tid"), _arguments(event).get("correlation"))
    try:
        start, length = float(event["ts"]), float(event.get("dur", 0.0))
    except (KeyError, TypeError, ValueError, OverflowError):
        return False
    return (
        math.isfinite((start + length) * 1e3)
        and length >= 0
        and all(name is None or isinstance(name, int | float | str) for name in names)
    )


def _span(event: dict[str, Any]) -> tuple[int, int]:
    """Start and end in nanoseconds; the trace's are microseconds with a fraction."""
    start = float(event["ts"])
    return round(start * 1e3), round((start + float(event.get("dur", 0.0))) * 1e3)


def _add_device_work(
    found: Trace, device: dict[str, list[dict[str, Any]]], calls: list[dict[str, Any]], ids: _Ids
) -> None:
    launches: dict[Any, Launch] = {}
    for call in calls:
        key = _arguments(call).get("correlation")
        if key is None:
            continue
        launch = Launch(_span(call)[0], *ids.of(call))
        if key not in launches or launch.at_ns < launches[key].at_ns:
            launches[key] = launch
    if not launches:
        found.missing.append("no CUDA calls with a correlation id in this trace")
        found.attribution = "unavailable:no_runtime_events"
    for category, events in device.items():
        for event in events:
            arguments = _arguments(event)
            name = str(event.get("name", "?"))
            start, end = _span(event)
            in_graph = any("graph node" in str(key).lower() for key in arguments)
            launch_of = launches.get(arguments.get("correlation"))
            number = arguments.get("device", 0)
            place = number if isinstance(number, int) else 0
            found.work.append(Work(name, _DEVICE[category], start, end, place, launch_of, in_graph, name))


def _arguments(event: dict[str, Any]) -> dict[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _add_operators(found: Trace, operators: list[dict[str, Any]], ids: _Ids) -> None:
    """The outermost operators: those that begin after the thread's last kept one has ended."""
    placed = []
    for event in operators:
        start, end = _span(event)
        process, thread = ids.of(event)
        placed.append((thread, start, -end, process, str(event.get("name", "?"))))
    placed.sort()
    busy_until: dict[int, int] = {}
    for thread, start, negative_end, process, name in placed:
        end = -negative_end
        if start < busy_until.get(thread, start):
            continue
        busy_until[thread] = end
        found.work.append(Work(name, "operator", start, end, 0, Launch(start, process, thread)))
