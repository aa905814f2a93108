"""The profiled request: what the server is asked for, what its trace gives, and what a failure leaves."""

from __future__ import annotations

import gzip
import json
import sqlite3
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest

from analysis.extras import Kernel, KernelTrace, Phases
from harness.errors import ServerError
from harness.measure import profile as profiling
from harness.server import profilers


def trace_events():
    def event(cat, name, ts, dur):
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, "args": {}}

    for step in range(6):
        at = 100 * step
        yield event("user_annotation", "wmtp.iteration", at, 90)
        yield event("user_annotation", "wmtp.draft", at + 10, 30)
        yield event("user_annotation", "wmtp.verify_forward", at + 40, 40)
        yield event("cpu_op", "aten::linear", at + 12, 20)
        yield event("cpu_op", "aten::linear", at + 42, 35)


class Client:
    """Takes a profile's order and writes a trace once a request has been served."""

    def __init__(self, directory, fails=""):
        self.directory, self.fails, self.orders, self.flushed = directory, fails, [], 0

    def start_profile(self, **options):
        if self.fails:
            raise ServerError(self.fails, "request_error")
        self.orders.append(options)

    def flush_cache(self):
        self.flushed += 1


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A stand-in for a server, and the requests it got."""
    requests = []
    server = SimpleNamespace(
        spec=SimpleNamespace(profiler="torch"), probe_directory=tmp_path, client=Client(tmp_path)
    )

    def request(asked, prompts, sampling, stall_limit_s, options=None):
        requests.append((prompts, sampling))
        body = json.dumps({"traceEvents": list(trace_events())}).encode()
        (tmp_path / "17-TP-0-decode.trace.json.gz").write_bytes(gzip.compress(body))
        return []

    monkeypatch.setattr(profiling, "request", request)
    monkeypatch.setattr(profiling, "sampling_parameters", lambda point: {"max_new_tokens": 9})
    monkeypatch.setattr(profilers, "_POLL_S", 0.01)
    monkeypatch.setattr(profiling, "_TRACE_TIMEOUT_S", 0.1)
    return server, requests


def run(server, steps=40):
    timed = SimpleNamespace(decode_steps=range(steps))
    return profiling.profile(server, SimpleNamespace(batch=2), list(range(50)), timed, 60.0)


def test_decode_steps_alone_are_profiled_and_read(served):
    server, requests = served
    extras = run(server)
    (order,) = server.client.orders
    assert (order["profile_stages"], order["profile_by_stage"], order["num_steps"]) == (["decode"], True, 20)
    assert order["activities"] == ["CPU", "GPU"]
    assert [len(prompts) for prompts, _ in requests] == [2, 1]  # the point's batch, and one that ends it
    trace = KernelTrace.model_validate(extras["kernel_trace"])
    assert (trace.source, trace.iterations, trace.problem) == ("torch", 4, "")
    assert {Kernel.model_validate(k).phase for k in extras["kernels"]} == {"draft", "verify"}
    assert Phases.model_validate(extras["profiled_phases"]).draft_ms == pytest.approx(0.03)
    assert server.client.flushed == 1


def test_a_short_run_is_profiled_over_the_steps_it_has(served):
    server, _ = served
    run(server, steps=7)
    assert server.client.orders[0]["num_steps"] == 6


@pytest.mark.parametrize(
    ("steps", "fails", "said"), [(2, "", "too few"), (40, "refused", "refused")], ids=["short", "refused"]
)
def test_a_profile_that_fails_leaves_its_reason_and_nothing_else(served, steps, fails, said):
    server, _ = served
    server.client.fails = fails
    extras = run(server, steps)
    assert list(extras) == ["kernel_trace"]
    assert said in KernelTrace.model_validate(extras["kernel_trace"]).problem


def test_an_older_trace_of_the_same_server_is_not_taken_for_the_new_one(served, monkeypatch):
    server, _ = served
    run(server)
    monkeypatch.setattr(profiling, "request", lambda *args, **kwargs: [])
    assert "left no" in run(server)["kernel_trace"]["problem"]


def test_nsys_follows_graphs_kernel_by_kernel_within_the_captured_range(tmp_path):
    words = profilers.nsys_words(tmp_path)
    assert words[:2] == ["nsys", "profile"]
    assert {"--cuda-graph-trace=node", "--capture-range=cudaProfilerApi"} <= set(words)
    assert f"--output={tmp_path / 'decode'}" in words


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch):
    """An `nsys` that copies what it is to export, or fails where that is empty."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(
        f"#!{sys.executable}\nimport shutil, sys, pathlib\n"
        "target = next(w.split('=', 1)[1] for w in sys.argv if w.startswith('--output='))\n"
        "source = pathlib.Path(sys.argv[-1])\n"
        "assert sys.argv[1] == 'export' and '--type=sqlite' in sys.argv\n"
        "sys.exit('no events collected') if not source.stat().st_size else shutil.copy(source, target)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_a_report_is_exported_and_read(served, fake_nsys, monkeypatch):
    server, _ = served
    server.spec.profiler = "nsys"
    report = server.probe_directory / "decode.1.nsys-rep"

    def request(*args, **kwargs):
        report.unlink(missing_ok=True)
        with closing(sqlite3.connect(report)) as connection:
            connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, shortName)")
            connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 5000, 'gemm')")
            connection.commit()
        return []

    monkeypatch.setattr(profiling, "request", request)
    extras = run(server)
    assert server.client.orders[0]["activities"] == ["CUDA_PROFILER"]
    assert [k["us_per_iteration"] for k in extras["kernels"]] == [5.0]
    assert extras["kernel_trace"]["file"] == "decode.1.sqlite"
    assert any("no NVTX" in text for text in extras["kernel_trace"]["missing"])


def test_an_export_that_fails_says_what_nsys_said(fake_nsys, tmp_path):
    report = tmp_path / "empty.nsys-rep"
    report.write_bytes(b"")
    with pytest.raises(ServerError, match="no events collected"):
        profilers.export(report)
