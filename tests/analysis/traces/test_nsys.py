"""nsys exports of several versions: what is there is used, what is missing is named, nothing is made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.traces import read_trace
from analysis.traces.attribution import busy_by_range, place
from harness.errors import InputError

from .captures import KERNEL, NVTX, RUNTIME, calls, export, from_sql, kernels, nvtx, pid, tid

DATA = Path(__file__).parents[2] / "data" / "analysis"


def busy(trace):
    return busy_by_range(place(trace))


def test_a_new_export_with_names_by_id(tmp_path):
    trace = read_trace(from_sql(tmp_path / "new.sqlite", (DATA / "nsys_new.sql").read_text()))
    assert trace.version == "3.20.0"
    assert busy(trace) == {"decode_step": 30, "draft": 20}
    assert [work.name for work in trace.work] == ["gemm", "gemm"]
    assert trace.ignored == {"domain record": 1, "open range 'never_closed'": 1}
    assert trace.attribution == "by launch"
    assert trace.warnings == []


def test_an_old_export_without_calls(tmp_path):
    trace = read_trace(from_sql(tmp_path / "old.sqlite", (DATA / "nsys_old.sql").read_text()))
    assert trace.kernel_ns == 30
    assert [range_.name for range_ in trace.ranges] == ["decode_step"]
    assert trace.attribution == "unavailable:no_runtime_table"
    assert busy(trace) == {}
    assert trace.version == ""
    assert {"META_DATA_EXPORT", "StringIds", RUNTIME} <= set(trace.missing)


def test_an_old_export_without_nvtx_says_so(tmp_path):
    script = (DATA / "nsys_old.sql").read_text() + "DROP TABLE NVTX_EVENTS_V2;"
    trace = read_trace(from_sql(tmp_path / "old.sqlite", script))
    assert trace.kernel_ns == 30
    assert any("no NVTX in this capture" in line for line in trace.missing)
    assert trace.attribution == "unavailable:no_runtime_table,no_nvtx"


@pytest.mark.parametrize("rows", [[], [(5, None, 75, "domain", tid())], [(5, None, 59, "open", tid())]])
def test_an_nvtx_table_without_closed_ranges_is_no_nvtx(tmp_path, rows):
    tables = {NVTX: ("start end eventType text globalTid", rows), RUNTIME: calls((5, 1)),
              KERNEL: kernels((10, 20, 1, "k"))}  # fmt: skip
    trace = read_trace(export(tmp_path / "t", tables))
    assert trace.attribution == "unavailable:no_nvtx"
    assert any("no NVTX in this capture" in line for line in trace.missing)


def test_an_empty_export_names_everything_and_raises_nothing(tmp_path):
    trace = read_trace(export(tmp_path / "t", {"OTHER": ("a", [])}))
    assert trace.kernel_ns == 0
    assert trace.attribution == "unavailable:no_runtime_table,no_nvtx"
    for what in ("no kernels in this capture", "no NVTX in this capture", RUNTIME, "StringIds"):
        assert any(what in line for line in trace.missing), what


def test_work_counts_for_its_launch_not_for_its_time(tmp_path):
    # Launched in `draft`, run after `verify` has begun; the second one the other way round.
    tables = {
        NVTX: nvtx((0, 10, "draft"), (10, 20, "verify")),
        RUNTIME: calls((9, 1), (10, 2)),
        KERNEL: kernels((15, 40, 1, "late"), (41, 44, 2, "later")),
    }
    assert busy(read_trace(export(tmp_path / "t", tables))) == {"draft": 25, "verify": 3}


def test_equal_correlation_ids_of_two_processes_stay_apart(tmp_path):
    tables = {
        NVTX: ("start end eventType text globalTid",
               [(0, 10, 59, "draft", tid(1, 100)), (0, 10, 59, "verify", tid(1, 200))]),
        RUNTIME: ("start end globalTid correlationId", [(1, 2, tid(1, 100), 7), (1, 2, tid(1, 200), 7)]),
        KERNEL: ("start end deviceId correlationId globalPid shortName",
                 [(5, 15, 0, 7, pid(100), "a"), (5, 8, 1, 7, pid(200), "b")]),
    }  # fmt: skip
    assert busy(read_trace(export(tmp_path / "t", tables))) == {"draft": 10, "verify": 3}


def test_without_a_process_column_two_processes_cannot_be_told_apart(tmp_path):
    def tables(*processes):
        return {
            NVTX: ("start end eventType text globalTid", [(0, 10, 59, "r", tid(1, p)) for p in processes]),
            RUNTIME: ("start end globalTid correlationId", [(1, 2, tid(1, p), 7) for p in processes]),
            KERNEL: ("start end deviceId correlationId shortName", [(5, 15, 0, 7, "a")]),
        }

    alone = read_trace(export(tmp_path / "one", tables(100)))
    assert busy(alone) == {"r": 10}
    both = read_trace(export(tmp_path / "two", tables(100, 200)))
    assert both.attribution == "unavailable:no_process_column"
    assert busy(both) == {}
    assert f"{KERNEL}.globalPid" in both.missing


def test_a_missing_correlation_column_is_named(tmp_path):
    tables = {
        NVTX: nvtx((0, 10, "r")),
        RUNTIME: calls((1, 7)),
        KERNEL: ("start end deviceId globalPid shortName", [(5, 15, 0, pid(), "a")]),
    }
    trace = read_trace(export(tmp_path / "t", tables))
    assert trace.attribution == "unavailable:no_correlation_column"
    assert f"{KERNEL}.correlationId" in trace.missing
    assert trace.kernel_ns == 10


def test_kernels_of_a_graph_belong_to_its_launch(tmp_path):
    rows = [(20, 30, 0, 7, pid(), "a", 11), (30, 34, 0, 7, pid(), "b", 12), (40, 41, 0, 8, pid(), "c", None)]
    tables = {
        NVTX: nvtx((0, 10, "draft"), (10, 20, "verify")),
        RUNTIME: calls((5, 7), (12, 8)),
        KERNEL: ("start end deviceId correlationId globalPid shortName graphNodeId", rows),
    }
    trace = read_trace(export(tmp_path / "t", tables))
    assert busy(trace) == {"draft": 14, "verify": 1}
    assert [work.in_graph for work in trace.work] == [True, True, False]


def test_graphs_traced_as_a_whole_are_counted_with_a_warning(tmp_path):
    tables = {
        NVTX: nvtx((0, 10, "draft")),
        RUNTIME: calls((5, 7)),
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("start end deviceId correlationId globalPid graphId",
                                            [(20, 50, 0, 7, pid(), 3)]),
    }  # fmt: skip
    trace = read_trace(export(tmp_path / "t", tables))
    assert busy(trace) == {"draft": 30}
    assert any("--cuda-graph-trace=node" in line for line in trace.warnings)


def test_busy_time_counts_overlaps_once_and_devices_apart(tmp_path):
    rows = [(0, 10, 0, 1, pid(), "a"), (5, 12, 0, 2, pid(), "b"), (20, 22, 0, 3, pid(), "c"),
            (0, 10, 1, 4, pid(), "d")]  # fmt: skip
    tables = {
        NVTX: nvtx((0, 9, "r")),
        RUNTIME: calls((1, 1), (2, 2), (3, 3), (4, 4)),
        KERNEL: ("start end deviceId correlationId globalPid shortName", rows),
    }
    trace = read_trace(export(tmp_path / "t", tables))
    assert busy(trace) == {"r": 12 + 2 + 10}
    assert trace.kernel_ns == 10 + 7 + 2 + 10


def test_inner_and_outer_ranges_and_other_threads(tmp_path):
    tables = {
        NVTX: nvtx((0, 100, "step"), (10, 20, "draft"), (20, 20, "empty")),
        RUNTIME: ("start end globalTid correlationId",
                  [(15, 16, tid(), 1), (20, 21, tid(), 2), (15, 16, tid(9), 3), (100, 101, tid(), 4)]),
        KERNEL: kernels((200, 201, 1, "a"), (201, 203, 2, "b"), (203, 207, 3, "c"), (207, 215, 4, "d")),
    }  # fmt: skip
    trace = read_trace(export(tmp_path / "t", tables))
    assert busy(trace) == {"step": 3, "draft": 1}
    placed = {one.work.name: one.names for one in place(trace)}
    assert placed == {"a": ("step", "draft"), "b": ("step",), "c": (), "d": ()}


def test_start_end_ranges_hold_every_thread_of_their_process(tmp_path):
    tables = {
        NVTX: nvtx((0, 100, "step"), kind=60),
        RUNTIME: ("start end globalTid correlationId", [(15, 16, tid(9), 1), (15, 16, tid(9, 200), 1)]),
        KERNEL: ("start end deviceId correlationId globalPid shortName",
                 [(20, 25, 0, 1, pid(), "a"), (20, 25, 0, 1, pid(200), "b")]),
    }  # fmt: skip
    assert busy(read_trace(export(tmp_path / "t", tables))) == {"step": 5}


@pytest.mark.parametrize(
    ("columns", "row", "name"),
    [
        ("shortName demangledName", ("gemm", "gemm<float>"), "gemm"),
        ("shortName demangledName", (1, 2), "short"),
        ("shortName demangledName", (None, 2), "full"),
        ("demangledName", (2,), "full"),
        ("mangledName", ("_Z4gemm",), "_Z4gemm"),
        ("registersPerThread", (32,), "?"),
        ("shortName", (99,), "string 99"),
    ],
)
def test_kernel_names_by_id_by_text_or_not_at_all(tmp_path, columns, row, name):
    tables = {
        "StringIds": ("id value", [(1, "short"), (2, "full")]),
        KERNEL: ("start end " + columns, [(0, 5, *row)]),
    }
    trace = read_trace(export(tmp_path / "t", tables))
    assert [work.name for work in trace.work] == [name]
    assert bool(trace.warnings) == (name == "string 99")


def test_ids_without_a_string_table_are_no_names(tmp_path):
    trace = read_trace(export(tmp_path / "t", {KERNEL: ("start end shortName", [(0, 5, 7)])}))
    assert [work.name for work in trace.work] == ["string 7"]
    assert "StringIds" in trace.missing


def test_the_fuller_of_two_versions_of_a_table_is_read(tmp_path):
    tables = {
        NVTX: nvtx(),
        "NVTX_EVENTS_V2": nvtx((0, 10, "old")),
        "NVTX_EVENTS_V10": nvtx((0, 10, "new")),
        "NVTX_EVENTS_PAYLOAD": nvtx((0, 10, "something else")),
    }
    assert [r.name for r in read_trace(export(tmp_path / "t", tables)).ranges] == ["new"]


def test_what_has_no_end_is_left_out_and_counted(tmp_path):
    tables = {
        NVTX: nvtx((10, 5, "back"), (0, None, "open"), (0, 9, "closed")),
        KERNEL: kernels((0, None, 1, "cut"), (3, 5, 2, "whole")),
    }
    trace = read_trace(export(tmp_path / "t", tables))
    assert trace.kernel_ns == 2
    assert trace.ignored == {"range 'back' that ends before it starts": 1, "open range 'open'": 1,
                             "kernel without an end": 1}  # fmt: skip


def test_ranges_without_an_event_type_are_taken_and_the_column_named(tmp_path):
    tables = {NVTX: ("start end text globalTid", [(0, 5, "r", tid())])}
    trace = read_trace(export(tmp_path / "t", tables))
    assert [r.name for r in trace.ranges] == ["r"]
    assert f"{NVTX}.eventType" in trace.missing


def test_copies_are_busy_time_but_no_kernels(tmp_path):
    tables = {
        NVTX: nvtx((0, 9, "r")),
        RUNTIME: calls((1, 1), (2, 2), (3, 3)),
        KERNEL: kernels((10, 20, 1, "k")),
        "CUPTI_ACTIVITY_KIND_MEMCPY": ("start end deviceId correlationId globalPid copyKind",
                                       [(20, 25, 0, 2, pid(), 1)]),
        "CUPTI_ACTIVITY_KIND_MEMSET": ("start end deviceId correlationId globalPid", [(25, 26, 0, 3, pid())]),
    }  # fmt: skip
    trace = read_trace(export(tmp_path / "t", tables))
    assert trace.kernel_ns == 10
    assert busy(trace) == {"r": 16}
    assert [work.name for work in trace.work] == ["k", "memcpy HtoD", "memset"]


@pytest.mark.parametrize(
    ("version", "warned"), [("3.20.0", False), ("2.7", False), ("9.1.0", True), ("", False)]
)
def test_the_schema_version_is_read_first(tmp_path, version, warned):
    tables = {"META_DATA_EXPORT": ("name value", [("EXPORT_SCHEMA_VERSION", version)] if version else [])}
    trace = read_trace(export(tmp_path / "t", tables))
    assert trace.version == version
    assert any("export schema" in line for line in trace.warnings) is warned
    assert any("EXPORT_SCHEMA_VERSION" in line for line in trace.missing) is not version.startswith(
        ("2", "3", "9")
    )


def test_what_is_no_export_is_an_error_with_a_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot read the trace"):
        read_trace(tmp_path / "absent.sqlite")
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"SQLite format 3\x00" + b"\x01" * 4000)
    with pytest.raises(InputError, match="nsys export"):
        read_trace(damaged)
    own = tmp_path / "decode.nsys-rep"
    own.write_bytes(b"\x00\x01\x02")
    with pytest.raises(InputError, match="nsys export --type sqlite"):
        read_trace(own)


def test_a_range_named_by_an_id_beside_an_empty_text(tmp_path):
    tables = {
        "StringIds": ("id value", [(3, "draft")]),
        NVTX: ("start end eventType text textId globalTid",
               [(0, 5, 59, "", 3, tid()), (5, 9, 59, None, 3, tid()), (9, 12, 59, "own", 3, tid())]),
    }  # fmt: skip
    trace = read_trace(export(tmp_path / "t", tables))
    assert [range_.name for range_ in trace.ranges] == ["draft", "draft", "own"]
