"""Records whose parts contradict each other: the context, the server, the rates, the clocks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from factory import make_record

from analysis.export import point_frame, step_frame
from analysis.load import load
from analysis.study import Study
from analysis.tables import build
from analysis.tables.render import render
from analysis.validity import judge
from harness.records import InputInfo, Record, write_record

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"
OWN = {
    "tp_size": 1, "dtype": "bfloat16", "kv_cache_dtype": "auto", "disable_radix_cache": True,
    "decode_log_interval": 1, "device": "cpu", "speculative_algorithm": "EAGLE", "speculative_num_steps": 6,
    "speculative_num_draft_tokens": 7, "speculative_eagle_topk": 1, "speculative_draft_window_size": 252,
    "speculative_draft_sink_size": 4,
}  # fmt: skip


def codes(record: Record) -> set[str]:
    return {reason.code for reason in judge(record).reasons if reason.severity == "invalid"}


def with_server(**changes: Any) -> Record:
    record = make_record("ring")
    record.server.arguments = {**OWN, **changes}
    return record


def scaled(factor: float, **fields: Any) -> Record:
    record = make_record("native", step_ms=40.0, **fields)
    steps = record.decode_steps
    steps.throughput_tokens_per_s = [factor * x for x in steps.throughput_tokens_per_s]
    return record


# -- the server --------------------------------------------------------------------------------------------


def test_a_server_like_the_point_is_no_finding() -> None:
    assert judge(with_server()).label == "ok"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tp_size", 2), ("kv_cache_dtype", "fp8_e4m3"), ("disable_radix_cache", False),
        ("decode_log_interval", 40), ("speculative_algorithm", None), ("speculative_num_draft_tokens", 3),
        ("speculative_draft_window_size", 4032), ("speculative_draft_sink_size", 64),
    ],
)  # fmt: skip
def test_arguments_that_contradict_the_point_are_named(name: str, value: object) -> None:
    verdict = judge(with_server(**{name: value}))
    assert verdict.label == "invalid:other_server" and name in verdict.text


def test_the_draft_backend_counts_where_a_server_has_one() -> None:
    record = with_server(device="cuda", speculative_draft_attention_backend="flashinfer")
    record.point = record.point.model_copy(update={"hardware": "a-gpu-of-our-own"})
    assert "device" not in judge(record).text, "nobody says which device that is"
    assert "speculative_draft_attention_backend is 'flashinfer', not 'intel_amx'" in judge(record).text


@pytest.mark.parametrize(
    ("hardware", "device", "text"),
    [
        ("cpu", "cuda", "device is 'cuda', not 'cpu'"),
        ("b200", "cpu", "device is 'cpu', not 'cuda'"),
        ("cpu", "cpu", ""),
        ("b200", None, ""),
    ],
)
def test_the_device_must_be_that_of_the_hardware(hardware: str, device: str | None, text: str) -> None:
    record = with_server(device=device, speculative_draft_attention_backend="intel_amx")
    record.point = record.point.model_copy(update={"hardware": hardware})
    verdict = judge(record)
    assert (
        (text in verdict.text and verdict.label == "invalid:other_server")
        if text
        else ("other_server" not in codes(record))
    )


def test_the_plugins_mode_must_be_the_arm() -> None:
    for arm, mode, fine in (("ring", "ring", True), ("ring", "windowed", False), ("native", "ring", False)):
        record = make_record(arm)
        record.server.engine_report = {"mode": mode}
        assert ("other_server" not in codes(record)) is fine


def test_an_input_of_another_length_is_no_measurement() -> None:
    record = make_record("native")
    assert isinstance(record.input, InputInfo)
    record.input = record.input.model_copy(update={"prompt_tokens": 4096})
    assert "prompt_length" in codes(record) and "the input has 4096 tokens" in judge(record).text


def test_a_dense_record_of_a_speculating_server_is_none() -> None:
    record = make_record("dense")
    record.decode_steps.accept_length = [1.0] * len(record.decode_steps)
    assert "speculated" in codes(record)


def test_the_windows_of_plugin_and_point_must_be_equal() -> None:
    for name, value, fine in (("window", "252", True), ("window", "4032", False), ("sink", "64", False),
                              ("draft_tokens", "3", False)):  # fmt: skip
        record = make_record("ring")
        record.server.engine_report = {"mode": "ring", name: value}
        assert ("other_server" not in codes(record)) is fine


def test_the_draft_of_a_cpu_has_the_cpus_backend() -> None:
    for backend, fine in (("intel_amx", True), ("flashinfer", False)):
        record = make_record("native", draft_backend=backend)
        record.server.arguments = {"device": "cpu", "attention_backend": "intel_amx"}
        assert ("other_server" not in codes(record)) is fine


# -- the machine -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hardware", "device", "gpus", "boot", "fine"),
    [
        ("h200", "cuda", ["NVIDIA H200"], "a", True), ("h200", "cuda", ["NVIDIA H100 80GB HBM3"], "a", False),
        ("h200", "cuda", ["NVIDIA GH200 480GB"], "a", False), ("h200", "cuda", [], "a", False),
        ("h200", "cuda", [], "url", True), ("h200-lab", "cuda", ["NVIDIA B200"], "a", False),
        ("mine", "cuda", ["NVIDIA B200"], "a", True), ("cpu", "cpu", ["NVIDIA B200"], "a", True),
        ("cpu", "cuda", ["NVIDIA B200"], "a", False), ("b200", "cpu", ["NVIDIA B200"], "a", False),
    ],
)  # fmt: skip
def test_the_machine_must_be_the_points_hardware(
    hardware: str, device: str, gpus: list[str], boot: str, fine: bool
) -> None:
    record = make_record("native", hardware=hardware)
    record.environment["gpus"] = [{"index": 0, "name": name} for name in gpus]
    record.server.arguments, record.server.boot_id = {"device": device}, boot
    assert ("other_machine" not in codes(record)) is fine


# -- one run ------------------------------------------------------------------------------------------------


def reasons(record: Record, code: str) -> list[str]:
    return [reason.severity for reason in judge(record).reasons if reason.code == code]


def test_a_clock_that_goes_back_is_another_run() -> None:
    record = make_record("native")
    times = record.decode_steps.time_s
    record.decode_steps.time_s = [t and t - (100.0 if i > 40 else 0.0) for i, t in enumerate(times)]
    assert reasons(record, "several_runs") == ["invalid"]


def test_a_request_that_holds_fewer_tokens_is_another_one() -> None:
    record = make_record("native")
    held = record.decode_steps.resident_tokens
    record.decode_steps.resident_tokens = held[:40] + held[:40]
    assert reasons(record, "several_runs") == ["note"]
    record.decode_steps.resident_tokens = [*held[:39], 0, *held[:40]]
    assert reasons(record, "several_runs") == ["note"], "the last line of a request holds nothing"
    record.log_summary["retracted_requests"] = 1
    assert reasons(record, "several_runs") == []


def test_requests_that_run_again_after_an_end_are_of_another_run() -> None:
    record = make_record("native", batch=2, record={"source": "imported", "requests": []})
    record.decode_steps.running_requests = [2] * 40 + [1] * 10 + [2] * 30
    assert reasons(record, "several_runs") == ["note"]
    record.decode_steps.running_requests = [1] * 10 + [2] * 60 + [1] * 10
    assert reasons(record, "several_runs") == []


def test_a_pause_in_an_imported_log_is_said() -> None:
    record = make_record("native", record={"source": "imported", "requests": []})
    times = record.decode_steps.time_s
    record.decode_steps.time_s = [t and t + (3600.0 if i > 50 else 0.0) for i, t in enumerate(times)]
    assert reasons(record, "several_runs") == ["note"]


# -- the context -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.25, 0.9, 1.5, 128])
def test_tokens_held_of_another_context(factor: float) -> None:
    record = make_record("native", batch=2)
    steps = record.decode_steps
    steps.resident_tokens = [r and int(r * factor) for r in steps.resident_tokens]
    assert "other_context" in codes(record)
    assert "8,192" in judge(record).text


def test_a_log_that_does_not_say_what_is_held_is_not_judged_by_it() -> None:
    record = make_record("native")
    record.decode_steps.resident_tokens = [None] * len(record.decode_steps)
    assert judge(record).valid


# -- rates and clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e-3, 0.1, 0.6, 2.2, 10, 1e3])
def test_a_throughput_in_another_unit_is_found_by_the_time_stamps(factor: float) -> None:
    assert judge(scaled(1)).label == "ok"
    assert "clock_disagreement" in codes(scaled(factor))


@pytest.mark.parametrize("factor", [1e-3, 0.1, 0.6, 2.2, 10, 1e3])
def test_a_throughput_in_another_unit_is_found_by_the_latency(factor: float) -> None:
    record = scaled(1, request={"e2e_latency_s": 3.3})
    record.decode_steps.time_s = [None] * len(record.decode_steps)
    assert judge(record).label == "ok"
    found = scaled(factor, request={"e2e_latency_s": 3.3})
    found.decode_steps.time_s = [None] * len(found.decode_steps)
    assert "clock_disagreement" in codes(found)


@pytest.mark.parametrize(("factor", "found"), [(1.0, False), (1.1, True), (0.9, True)])
def test_rates_a_tenth_off_are_found_by_the_latency(factor: float, found: bool) -> None:
    record = scaled(factor, request={"e2e_latency_s": 3.25})
    assert ("clock_disagreement" in codes(record)) is found


def test_a_line_may_stand_for_many_steps() -> None:
    """An imported log of an interval above 1: the tokens held tell how many steps a line stands for."""
    record = make_record("native", step_ms=40.0, steps=40, record={"source": "imported", "requests": []})
    steps = record.decode_steps
    rates = steps.throughput_tokens_per_s
    steps.resident_tokens = [8192 + int(40 * 2.9 * i) for i in range(40)]
    steps.time_s = [float(int(1.0e9 + 40 * 0.04 * i)) for i in range(40)]
    assert judge(record).label == "ok"
    steps.throughput_tokens_per_s = [x / 1000 for x in rates]
    assert "clock_disagreement" in codes(record)


def test_a_pause_between_two_runs_is_no_contradiction() -> None:
    record = make_record("native", step_ms=40.0)
    times = record.decode_steps.time_s
    record.decode_steps.time_s = [t and t + (3600.0 if i > 50 else 0.0) for i, t in enumerate(times)]
    assert judge(record).label == "ok"


@pytest.mark.parametrize("rate", [1e-320, 1e-12, 1e15, 1e308, -1.0, float("inf"), float("nan")])
def test_a_rate_whose_inverse_is_no_time_is_invalid_without_a_warning(rate: float) -> None:
    for damaged in ([rate] * 80, [rate] * 40 + [140.0] * 40):
        record = make_record("native")
        record.decode_steps.throughput_tokens_per_s = damaged
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert "impossible_rate" in codes(record)
            point_frame([record])
            step_frame([record])
            render(build("table_2", Study([record, make_record("ring")])), "csv")


def test_a_subnormal_length_gives_no_warning() -> None:
    record = make_record("native")
    record.decode_steps.accept_length = [1e-320] * 80
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "length_below_one" in codes(record)


def test_the_reference_records_agree_with_themselves() -> None:
    odd = {
        "other_server", "other_machine", "other_context", "other_prompt", "other_probe", "impossible_rate",
        "clock_disagreement", "speculated", "reply_mismatch", "token_count_mismatch",
    }  # fmt: skip
    records = load(REFERENCE)
    assert not [record.key for record in records if odd & codes(record) or reasons(record, "several_runs")]


def test_the_check_command_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from analysis.cli import main

    write_record(tmp_path, with_server(tp_size=4))
    assert main(["check", "--results", str(tmp_path)]) == 1
    assert "tp_size is 4, not 1" in capsys.readouterr().out
