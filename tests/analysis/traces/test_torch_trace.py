"""torch traces of a GPU and of a CPU, by hand and from the profiler itself."""

from __future__ import annotations

import gzip
import json

import pytest

from analysis.traces import read_trace
from analysis.traces.attribution import busy_by_range, place
from harness.errors import InputError


def event(cat, name, ts, dur, tid=1, pid=7, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "pid": pid, "args": args}


def trace_of(path, *events, compress=False, **body):
    raw = json.dumps({"schemaVersion": 1, "traceEvents": list(events), **body}).encode()
    path.write_bytes(gzip.compress(raw) if compress else raw)
    return read_trace(path)


@pytest.mark.parametrize("compress", [False, True])
def test_gpu_work_counts_for_its_launch(tmp_path, compress):
    trace = trace_of(
        tmp_path / "t.json",
        event("user_annotation", "wmtp.draft", 0, 10),
        event("user_annotation", "wmtp.verify_forward", 10, 10),
        event("gpu_user_annotation", "wmtp.draft", 50, 10),
        event("cuda_runtime", "cudaLaunchKernel", 9, 1, correlation=1),
        event("cuda_runtime", "cudaGraphLaunch", 11, 1, correlation=2),
        event("cpu_op", "aten::mm", 8, 3),
        event("kernel", "late", 15, 2.5, tid=3, pid=0, correlation=1, device=0),
        event("kernel", "in_graph", 20, 1, tid=3, pid=0, correlation=2, device=0, **{"graph node id": 4}),
        event("gpu_memcpy", "Memcpy DtoH", 30, 1, tid=3, pid=0, correlation=3, device=0),
        {"ph": "i", "name": "instant", "ts": 1},
        compress=compress,
    )
    assert trace.source == "torch"
    assert busy_by_range(place(trace)) == {"wmtp.draft": 2500, "wmtp.verify_forward": 1000}
    assert {work.name: (work.kind, work.in_graph) for work in trace.work} == {
        "late": ("kernel", False), "in_graph": ("kernel", True), "Memcpy DtoH": ("memcpy", False),
    }  # fmt: skip


def test_without_a_gpu_the_outermost_operators_are_the_work(tmp_path):
    trace = trace_of(
        tmp_path / "t.json",
        event("user_annotation", "wmtp.draft", 0, 100),
        event("cpu_op", "aten::linear", 10, 30),
        event("cpu_op", "aten::mm", 12, 20),
        event("cpu_op", "aten::add", 40, 5),
        event("cpu_op", "aten::add", 40, 5, tid=2),
    )
    placed = place(trace)
    assert [(one.work.name, one.names) for one in placed] == [
        ("aten::linear", ("wmtp.draft",)), ("aten::add", ("wmtp.draft",)), ("aten::add", ()),
    ]  # fmt: skip
    assert trace.kernel_ns == 40_000
    assert any("no GPU kernels" in text for text in trace.missing)


def test_older_names_of_the_categories(tmp_path):
    trace = trace_of(
        tmp_path / "t.json",
        event("user_annotation", "r", 0, 10),
        event("Runtime", "cudaLaunchKernel", 1, 1, correlation=1),
        event("Kernel", "k", 5, 1, tid="stream 7", pid="GPU 0", correlation=1),
    )
    assert busy_by_range(place(trace)) == {"r": 1000}


def test_kernels_without_their_calls_cannot_be_told_apart(tmp_path):
    trace = trace_of(
        tmp_path / "t.json", event("user_annotation", "r", 0, 10), event("kernel", "k", 5, 1, correlation=1)
    )
    assert trace.attribution == "unavailable:no_runtime_events"
    assert trace.kernel_ns == 1000


def test_a_trace_without_ranges_says_so(tmp_path):
    trace = trace_of(tmp_path / "t.json", event("cpu_op", "aten::mm", 12, 20))
    assert trace.attribution == "unavailable:no_ranges"
    assert any("no ranges" in text for text in trace.missing)


def test_names_that_are_no_utf8_and_numbers_that_are_no_json(tmp_path):
    path = tmp_path / "t.json"
    event = b'{"ph":"X","cat":"cpu_op","name":"a\xff","ts":1,"dur":2,"pid":1,"tid":1,"args":{"x": NaN}}'
    path.write_bytes(b'{"traceEvents": [' + event + b"]}")
    assert read_trace(path).kernel_ns == 2000


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a": 1}', b"[1, 2", gzip.compress(b"{}" * 500)[:40]])
def test_what_is_no_trace_is_an_error_with_a_sentence(tmp_path, raw):
    path = tmp_path / "t.json.gz"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"t\.json\.gz"):
        read_trace(path)


def test_what_the_profiler_itself_writes(tmp_path):
    torch = pytest.importorskip("torch")

    activity = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as profile:
        step, draft = (torch.profiler.record_function(f"wmtp.{name}") for name in ("iteration", "draft"))
        with step, draft:
            torch.nn.functional.linear(torch.ones(4, 4), torch.ones(4, 4))
        torch.ones(3).cumsum(0)
    path = tmp_path / "real.trace.json.gz"
    profile.export_chrome_trace(str(path))
    names = {one.work.name: one.names for one in place(read_trace(path))}
    assert names["aten::linear"] == ("wmtp.iteration", "wmtp.draft")
    assert names["aten::cumsum"] == ()
    assert "aten::addmm" not in names and "aten::mm" not in names


def test_a_trace_nested_without_end_is_an_error(tmp_path):
    (tmp_path / "t.json").write_bytes(b"[" * 100_000)
    with pytest.raises(InputError, match="profile again"):
        read_trace(tmp_path / "t.json")
