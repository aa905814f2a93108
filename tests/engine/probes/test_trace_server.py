"""The phase trace inside a real ring server: every step accounted for, in record and tables 7 and 8."""

from __future__ import annotations

from collections import Counter

import pytest
from rich.console import Console

from analysis.extras import KernelTrace, Phases, read_extra, read_kernels
from analysis.study import Study
from analysis.tables import build
from harness import compose, study
from harness.measure.probes import read_lines
from harness.phases import DRAFT, OVERHEAD, VERIFY, phase_of
from harness.records import Outcome, read_all

pytestmark = [pytest.mark.server, pytest.mark.slow]

GAMMA = 6
DRAFT_DECODES = GAMMA - 1  # the extend after the verify proposes the first token
WORDS = [
    "model=tiny", "hardware=cpu", "arm=ring", "probe=trace", "model.dtype=float32", "kv_dtype=float32",
    "context=1024", "window=60", "sink=4", f"depth={GAMMA + 1}", "max_new_tokens=96",
    "repetition_penalty=1.0", "ignore_eos=true", "input.params.keys=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The record of one traced point, and every line that the server wrote."""
    results = tmp_path_factory.mktemp("results")
    outcome = study.measure([compose.open_cell(compose.load(WORDS))], results, console=Console(stderr=True))
    assert [record.reason for record in outcome.failed] == []
    (record,), errors = read_all(results)
    assert errors == [] and record.outcome is Outcome.OK
    (path,) = results.glob("logs/probes/*/trace.rank0.jsonl")
    return record, read_lines(path, 0, 2**63)


def test_every_verify_step_has_a_line_with_what_it_accepted(measured):
    record, lines = measured
    request = record.requests[0]
    # Warm-up first, then the timed run, then the same once more for the profiler and what ends its capture.
    taken = [n for line in lines for n in line["accepted"]]
    runs = [taken[i : i + request.verify_steps] for i in range(len(taken) - request.verify_steps + 1)]
    wanted = Counter({n: count for n, count in enumerate(request.accept_histogram) if count})
    assert sum(Counter(run) == wanted for run in runs) >= 2


def test_parts_add_up_to_each_call_of_the_worker(measured):
    _, lines = measured
    for line in lines:
        assert sum(line["parts_ns"].values()) == line["worker_ns"]
        forwards = [name for name in line["parts_ns"] if name.startswith("draft_forward.")]
        assert len(forwards) == DRAFT_DECODES
        assert {phase_of(name) for name in line["parts_ns"]} >= {VERIFY, OVERHEAD, DRAFT}
        for part in ("draft_index", "draft_extend_index", "verify_index", "tree_build", "sampling"):
            assert line["parts_ns"][part] > 0, part


def test_phases_are_of_the_timed_run_and_sum_to_its_iterations(measured):
    record, _ = measured
    phases = read_extra(record, "phases", Phases)
    assert phases is not None
    assert 0 < phases.iterations < record.requests[0].verify_steps
    assert len(phases.draft_forward_ms) == DRAFT_DECODES
    whole = phases.verify_base_ms + phases.verify_overhead_ms + phases.draft_ms + phases.unattributed_ms
    assert whole == pytest.approx(phases.iteration_ms)
    assert phases.context_tokens_mean is not None and 1024 <= phases.context_tokens_mean <= 1024 + 96


def test_operators_of_the_draft_come_from_a_real_profile(measured):
    record, _ = measured
    trace = read_extra(record, "kernel_trace", KernelTrace)
    assert trace is not None
    assert (trace.source, trace.problem, trace.attribution) == ("torch", "", "by launch")
    assert trace.iterations >= 10
    assert trace.unattributed_us < 0.2 * trace.busy_us_all
    assert set(trace.classes_us) >= {"index build", "attention decode", "attention extend", "matmul", "copy"}
    attention = {
        (k.kind, k.phase): k.calls_per_iteration for k in read_kernels(record) if "attention" in k.kind
    }
    # One draft layer: a call for each draft decode, whatever else an iteration runs.
    assert attention["attention decode", "draft"] == DRAFT_DECODES
    profiled = read_extra(record, "profiled_phases", Phases)
    assert profiled is not None and profiled.source == "torch"


def test_tables_7_and_8_show_them(measured):
    record, _ = measured
    phases = [
        row for row in build("7", Study([record])).rows if row["hardware"] == "cpu" and row.get("source")
    ]
    assert [(row["arm"], row["source"]) for row in phases] == [("ring", "engine"), ("ring", "torch")]
    kernels = [row for row in build("8", Study([record])).rows if row.get("kind")]
    assert {row["kind"] for row in kernels} >= {"index build", "attention decode", "attention extend"}
