"""One point end to end, on real servers: every arm in float32, where greedy outputs must agree exactly."""

import psutil
import pytest
from rich.console import Console

from analysis.acceptance import acceptance_length, conditional_acceptance
from analysis.estimators import length_agreement, step_statistics
from analysis.extras import DecisionProbe, KernelTrace, Phases
from harness import compose, study
from harness.records import Outcome, read_all, read_log
from harness.server import processes
from harness.server.launch import BOOT_MARK

pytestmark = pytest.mark.server
ARMS = ("dense", "native", "windowed", "ring")
COMMON = [
    "model=tiny",
    "hardware=cpu",
    "model.dtype=float32",
    "kv_dtype=float32",
    "context=1024",
    "window=60",
    "sink=4",
    "depth=7",
    "max_new_tokens=96",
    "repetition_penalty=1.0",
    "input.params.keys=4",
]


TRACED = {"windowed": ("probe=trace",)}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    # The windowed arm runs with the phase trace on: marks must change nothing that is compared below.
    cells = [
        compose.open_cell(compose.load([*COMMON, f"arm={arm}", f"seed={seed}", *TRACED.get(arm, ())]))
        for arm in ARMS
        for seed in (0, 1)
    ]
    outcome = study.measure(cells, results, console=Console(stderr=True))
    return results, outcome


@pytest.fixture(scope="module")
def by_arm(measured):
    _, outcome = measured
    found = {}
    for record in outcome.records:
        found.setdefault(record.point.arm, {})[record.point.seed] = record
    return found


def test_every_point_is_measured(measured):
    results, outcome = measured
    assert [r.reason for r in outcome.failed] == []
    stored, errors = read_all(results)
    assert errors == []
    assert {r.key for r in stored} == {r.key for r in outcome.records}
    assert len(stored) == 8


def test_prompts_are_exact_and_cold(by_arm):
    for records in by_arm.values():
        for record in records.values():
            assert [r.prompt_tokens for r in record.requests] == [1024]
            assert [r.cached_tokens for r in record.requests] == [0]


def test_greedy_outputs_agree_token_for_token(by_arm):
    for seed in (0, 1):
        outputs = {arm: by_arm[arm][seed].requests[0].output_ids for arm in ARMS}
        assert len(outputs["dense"]) >= 16
        assert all(ids == outputs["dense"] for ids in outputs.values())


def test_the_draft_is_alive_and_the_window_matters_to_it(by_arm):
    histograms = {arm: [by_arm[arm][s].requests[0].accept_histogram for s in (0, 1)] for arm in ARMS}
    assert histograms["dense"] == [None, None]
    assert histograms["windowed"] == histograms["ring"]
    assert all(sum(h[1:]) > 0 for h in histograms["native"])


@pytest.mark.slow
def test_a_probe_does_not_change_the_run(tmp_path):
    cells = [
        compose.open_cell(compose.load([*COMMON, "arm=native", "seed=0", *more]))
        for more in ((), ("probe=decision",))
    ]
    outcome = study.measure(cells, tmp_path, console=Console(stderr=True))
    (plain,) = [r.requests[0] for r in outcome.records if r.point.probe is None]
    (record,) = [r for r in outcome.records if r.point.probe == "decision"]
    request = record.requests[0]
    assert request.output_ids == plain.output_ids
    assert request.accept_histogram == plain.accept_histogram
    probe = DecisionProbe.model_validate(record.extras["decision_probe"])
    # d - 1 proposals an iteration: the verified ones but the first iteration's first, which the prefill made,
    # and one after the last verify.
    assert probe.steps == 6 * request.verify_steps
    assert probe.control_agreeing_steps == probe.steps
    assert 0 < probe.agreeing_steps < probe.steps
    assert (probe.window_tokens, probe.sink_tokens) == (60, 4)


def test_a_traced_run_tells_where_its_time_went(by_arm):
    for record in by_arm["windowed"].values():
        phases = Phases.model_validate(record.extras["phases"])
        assert 0 < phases.iterations < record.requests[0].verify_steps
        assert len(phases.draft_forward_ms) == 5  # the extend after a verify proposes the first of six drafts
        parts = (phases.verify_base_ms, phases.verify_overhead_ms, phases.draft_ms, phases.unattributed_ms)
        assert sum(parts) == pytest.approx(phases.iteration_ms)
        trace = KernelTrace.model_validate(record.extras["kernel_trace"])
        assert (trace.source, trace.problem, trace.attribution) == ("torch", "", "by launch")
        assert {"index build", "attention decode", "attention extend"} <= set(trace.classes_us)
        assert {kernel["phase"] for kernel in record.extras["kernels"]} >= {"draft", "draft_extend", "verify"}


def test_histogram_identities(by_arm):
    for arm in ARMS[1:]:
        for record in by_arm[arm].values():
            request = record.requests[0]
            histogram = request.accept_histogram
            assert len(histogram) == 7
            assert sum(histogram) == request.verify_steps
            assert sum(n * count for n, count in enumerate(histogram)) == request.correct_drafts
            assert request.proposed_drafts == 6 * request.verify_steps
            assert acceptance_length(conditional_acceptance([histogram])) == pytest.approx(
                1 + request.correct_drafts / request.verify_steps
            )


def test_log_and_replies_tell_the_same_acceptance_length(by_arm):
    for arm in ARMS[1:]:
        for record in by_arm[arm].values():
            found = length_agreement(record)
            assert found.agrees, found
            assert len(record.decode_steps) == record.requests[0].verify_steps


def test_steady_state_and_raw_log_are_there(measured, by_arm):
    results, _ = measured
    for records in by_arm.values():
        for record in records.values():
            assert record.outcome is Outcome.OK
            assert step_statistics(record).step_ms.value > 0
            log = read_log(results / "points" / record.key)
            assert log.count(b"Decode batch") == len(record.decode_steps)
            assert sum(record.prefill_steps.new_tokens) == 1024


def test_the_ring_holds_less_and_says_so(by_arm):
    def pools(arm):
        return {pool.role: pool.tokens for pool in by_arm[arm][0].server.pools}

    assert pools("windowed")["draft"] == pools("native")["draft"] == pools("native")["target"]
    assert pools("ring")["draft"] == 1 * (4 + 60 + 7)


def test_finished_points_are_not_measured_again(measured):
    results, outcome = measured
    cells = [compose.open_cell(compose.load([*COMMON, "arm=ring", "seed=0"]))]
    key = cells[0].points()[0].key
    again = study.measure(cells, results, console=Console(stderr=True))
    (before,) = [record for record in outcome.records if record.key == key]
    assert again.records == [before]


def test_no_process_and_no_port_is_left(measured):
    _, outcome = measured
    ports = {r.server.command[r.server.command.index("--port") + 1] for r in outcome.records}
    assert len(ports) >= 1
    assert all(processes.port_is_free(int(port)) for port in ports)
    boots = {r.server.boot_id for r in outcome.records}
    assert processes.find_orphans(BOOT_MARK, boots) == []
    assert not [p for p in psutil.Process().children(recursive=True) if "sglang" in " ".join(p.cmdline())]
