"""Damaged and foreign captures: refused in a sentence, or read with what could not be counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.traces import read_trace
from analysis.traces.report import as_dict, lines
from harness.errors import InputError

from .captures import KERNEL, NVTX, RUNTIME, export, from_sql, kernels, tid

SCRIPT = Path(__file__).parents[2] / "data" / "analysis" / "nsys_new.sql"
TABLES = {
    NVTX: "start end eventType text textId globalTid",
    RUNTIME: "start end globalTid correlationId",
    KERNEL: "start end deviceId correlationId globalPid shortName demangledName graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end deviceId copyKind",
    "StringIds": "id value",
    "META_DATA_EXPORT": "name value",
}
CELLS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.text(max_size=4) | st.binary()
VALUES = st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.lists(st.none())
EVENTS = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from(["kernel", "cpu_op", "user_annotation", "cuda_runtime"])},
    optional={
        **dict.fromkeys(("ts", "dur"), VALUES | st.integers(0, 9)),
        **dict.fromkeys(("pid", "tid", "name"), VALUES),
        "args": VALUES | st.fixed_dictionaries({}, optional={"correlation": VALUES, "device": VALUES}),
    },
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture(scope="module")
def sound(folder: Path) -> bytes:
    return from_sql(folder / "sound.sqlite", SCRIPT.read_text()).read_bytes()


def show(path: Path) -> None:
    """Everything that is printed or stored of a capture; a sentence is the only error."""
    try:
        trace = read_trace(path)
    except InputError as error:
        assert str(path) in str(error)
        return
    list(lines(trace, 0, 9))
    json.dumps(as_dict(trace, 0))


@settings(max_examples=100)
@given(st.data())
def test_any_cells_are_read_or_counted(folder: Path, data: st.DataObject) -> None:
    path = folder / "cells.sqlite"
    path.unlink(missing_ok=True)
    rows = {
        name: st.lists(st.tuples(*[CELLS] * len(text.split())), max_size=3) for name, text in TABLES.items()
    }
    export(path, {name: (text, data.draw(rows[name])) for name, text in TABLES.items()})
    show(path)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0), st.integers(1, 255)), min_size=1, max_size=4), st.integers(0, 1 << 18)
)
def test_any_damage_to_an_export_is_survived(
    folder: Path, sound: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    body = bytearray(sound)
    for at, mask in changes:
        body[at % len(body)] ^= mask
    path = folder / "damaged.sqlite"
    path.write_bytes(body[:cut])
    show(path)


@settings(max_examples=200)
@given(st.lists(EVENTS | VALUES, max_size=5))
def test_any_events_are_read_or_counted(folder: Path, events: list[object]) -> None:
    path = folder / "events.json"
    path.write_text(json.dumps({"traceEvents": events}))
    show(path)


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, gzip.compress(b'{"traceEvents": []}')[:-3], b"\x1f\x8b\x08", b""]
)
def test_what_is_no_trace_is_refused(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "t.json").write_bytes(body)
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "t.json")


def test_damaged_rows_are_counted_and_the_others_used(tmp_path: Path) -> None:
    tables = {
        NVTX: (TABLES[NVTX], [(0, 9, 59, "draft", None, tid()), ("x", 9, 59, "draft", None, tid())]),
        RUNTIME: (TABLES[RUNTIME], [(1, 2, tid(), 1), (b"", 2, tid(), 2)]),
        KERNEL: kernels((2, 5, 1, "mm"), (2, 2.5, 1, "mm"), (5, 2, 1, "mm")),
    }
    trace = read_trace(export(tmp_path / "t", tables))
    assert trace.kernel_ns == 3
    assert trace.ignored == {"damaged range": 1, "damaged call": 1, "damaged kernel": 2}


def test_an_event_without_a_time_is_counted_and_not_put_at_zero(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}
    broken = [
        {**event, "ts": None},
        {**event, "dur": -1},
        {**event, "ts": float("nan")},
        {**event, "pid": [1]},
    ]
    del broken[0]["ts"]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [event, *broken]}))
    trace = read_trace(tmp_path / "t.json")
    assert (trace.kernel_ns, trace.ignored) == (2000, {"damaged event": 4})


def test_a_view_without_end_is_not_run(tmp_path: Path) -> None:
    path = from_sql(
        tmp_path / "view.sqlite",
        f"CREATE VIEW {KERNEL} AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) "
        "SELECT start, start AS end FROM n;",
    )
    assert any(KERNEL in text for text in read_trace(path).missing)
