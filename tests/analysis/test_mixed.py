"""Records that lie in one folder but may not be averaged, divided or paired with each other."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import pytest
from factory import make_record

from analysis.compare import compare_sets
from analysis.foreign import import_log
from analysis.load import load
from analysis.study import Cell, Study, pooled_ratio, step_ms
from analysis.tables import build, frame
from analysis.tables.render import render
from analysis.validity import judge
from harness.records import InputInfo, Pool, Record, ServerInfo, read_all, write_record

LINE = (
    "[2026-11-30 02:28:{second:02d}] Decode batch, #running-req: 1, #token: 8206, token usage: 0.12, "
    "accept len: 2.00, accept rate: 0.33, cuda graph: True, gen throughput (token/s): {rate}, #queue-req: 0\n"
)


def study(**twin: object) -> list[Record]:
    """Native at 40 ms and ring at 20 ms on three prompts, two with a native twin at 400 ms."""
    records = []
    for seed in range(3):
        records += [make_record("native", step_ms=40.0, seed=seed), make_record("ring", seed=seed)]
        if twin and seed < 2:
            records.append(make_record("native", step_ms=400.0, seed=seed, **twin))
    return records


@pytest.mark.parametrize(
    "twin", [{"kv_budget_mib": 384}, {"task_params": {"keys": 4}}, {"shared_prefill": True}, {"tp": 2}]
)
def test_twins_of_another_setting_change_no_table(twin: dict[str, object]) -> None:
    for name in ("table_1", "table_2", "table_13"):
        alone, beside = (frame(name, records) for records in (study(), study(**twin)))
        columns = [c for c in alone.columns if c not in ("checkpoint",)]
        assert beside[columns].equals(alone[columns]), name


def test_a_ratio_needs_the_same_prompt_and_conditions() -> None:
    native = Cell(make_record("native", step_ms=40.0))
    other_prompt = make_record("ring")
    assert isinstance(other_prompt.input, InputInfo)
    other_prompt.input = other_prompt.input.model_copy(
        update={"sha256_ids": hashlib.sha256(b"other").hexdigest()}
    )
    assert pooled_ratio([native], [Cell(make_record("ring"))], step_ms).estimate is not None
    assert pooled_ratio([native], [Cell(other_prompt)], step_ms).note == "no common prompt"
    budget = Cell(make_record("ring", kv_budget_mib=384))
    assert pooled_ratio([native], [budget], step_ms).note == "no common prompt"


def test_sets_of_several_machines_pair_each_machine_with_itself() -> None:
    both = [make_record("native"), make_record("native", hardware="h100", step_ms=2.0)]
    found = compare_sets(both, both, "step_ms")
    assert sum(e.pairs for e in found.effects) == 2
    assert all(e.ratio.value == pytest.approx(1) and e.ratio.high < 1.2 for e in found.effects)
    (one,) = compare_sets(both[:1], both[1:], "step_ms").effects
    assert one.ratio.value == pytest.approx(0.1, rel=0.05), "two sets of one machine each are compared"


def test_a_second_log_does_not_replace_the_first(tmp_path: Path) -> None:
    def imported(rate: float) -> list[Path]:
        log = tmp_path / "server.log"
        log.write_text("".join(LINE.format(second=i, rate=rate + i) for i in range(20)))
        return import_log(argparse.Namespace(
            log=log, begin=None, end=None, results=tmp_path / "results", model="m", hardware="h100",
            arm="native", depth=7, batch=1, tp=1, context=8192, task="unknown", window=None, sink=None,
        ))  # fmt: skip

    first, second = imported(50.0), imported(500.0)
    assert first != second and imported(50.0) == first
    records, errors = read_all(tmp_path / "results")
    assert errors == [] and sorted(r.point.repeat for r in records) == [0, 1]


@pytest.mark.parametrize(
    "spoil",
    [
        {"request": {"accept_histogram": "odd"}},
        {"record": {"log_summary": {"retracted_requests": "many"}}},
        {"record": {"extras": {"shared_prefill": 3}}},
        {"record": {"samples": {"sm_clock_mhz": ["fast"] * 9}}},
    ],
)
def test_one_odd_record_is_named_and_the_others_are_shown(
    tmp_path: Path, spoil: dict[str, dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    if "request" in spoil:
        odd = make_record("native", batch=2)
        odd.requests[0].accept_histogram = [3, 4]
    else:
        odd = make_record("native", **spoil)
    for record in (odd, make_record("ring")):
        write_record(tmp_path, record)
    records = load(tmp_path)
    left_out = capsys.readouterr().err
    assert [r.point.arm for r in records] == ["ring"]
    assert left_out.startswith("left out: ") and odd.key in left_out and left_out.count("\n") == 1


def test_unlike_machines_are_named_above_every_table() -> None:
    other = make_record("ring", record={"environment": {"cpu": "another", "versions": {"sglang": "0.4.0"}}})
    text = render(build("table_2", Study([make_record("native"), other])), "csv")
    assert "ratios across them mean nothing: cpu another / test cpu; sglang 0.4.0 / 0.5.23." in text
    assert "unlike machines" not in render(build("table_2", Study(study())), "csv")


def test_lengths_that_no_speculating_server_logs_are_invalid() -> None:
    silent, low = make_record("native"), make_record("native")
    silent.decode_steps.accept_length = [None] * len(silent.decode_steps)
    low.decode_steps.accept_length = [0.5] * len(low.decode_steps)
    assert "no_speculation" in {reason.code for reason in judge(silent).reasons}
    assert "length_below_one" in {reason.code for reason in judge(low).reasons}
    assert judge(make_record("dense")).valid


def test_a_busy_machine_is_said_of_its_records_and_above_their_tables() -> None:
    busy = {"load_average": [4.2, 3.0, 2.0], "usable_cores": 2, "gpus": [{"other_tenants": 1}]}
    quiet = {"load_average": [2.1, 3.0, 2.0], "usable_cores": 2, "gpus": [{"other_tenants": 0}]}
    odd = {"load_average": "high", "usable_cores": None, "gpus": 3}
    records = [
        make_record("native", seed=n, record={"environment": e}) for n, e in enumerate((busy, quiet, odd))
    ]
    codes = [[reason.code for reason in judge(record).reasons] for record in records]
    assert ["busy_machine" in found for found in codes] == [True, False, False]
    header = build("2", Study(records)).header
    assert any("1 of 3 valid records were measured on a busy machine" in line for line in header)


def test_a_table_says_which_of_several_settings_its_rows_stand_for() -> None:
    records = [make_record("ring", depth=depth, seed=seed) for depth in (5, 7) for seed in range(2)]
    records.append(make_record("ring", window_tokens=508))
    (line,) = (line for line in build("2", Study(records)).header if "rows stand for" in line)
    assert "d = 7 (also measured: 5)" in line
    assert "W = 252 (also measured: 508)" in line
    assert not any("rows stand for" in line for line in build("2", Study(records[:1])).header)


def test_the_bandwidth_table_takes_the_fit_on_most_depths_and_exact_bytes() -> None:
    shape = {"mtp_attention_layers": 1, "kv_heads": 4, "head_dim": 64}
    rounded = ServerInfo(architecture=shape, pools=[Pool(role="draft", tokens=50_092, bytes=42_949_673)])
    few = [
        make_record("native", task="vt", depth=d, step_ms=9.0 * d, record={"server": rounded}) for d in (5, 7)
    ]
    many = [make_record("native", depth=d, step_ms=2.0 * d, record={"server": rounded}) for d in (2, 3, 5, 7)]
    found = frame("bandwidth", [*few, *many]).set_index("depth")
    assert found.loc[7, "measured_ms"] == pytest.approx(6 * 2.0, rel=0.02)
    assert set(found["bytes_per_token"].dropna()) == {2 * 4 * 64 * 2}
    assert set(found["source"]) >= {"fit"}
