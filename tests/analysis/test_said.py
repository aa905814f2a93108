"""What a reader is told beside the numbers: what is unlike, left out, or measured elsewhere alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from factory import make_record
from rich.console import Console

from analysis import demo
from analysis.cli import main
from analysis.compare import compare_arms, render
from analysis.copies import copies
from analysis.figures import make
from analysis.figures.base import close
from analysis.load import load
from analysis.report.summary import summarise
from analysis.study import Cell, Study
from analysis.tables import TABLES, build, frame
from harness.records import Pool, Record, ServerInfo, write_record


def loop(record: Record) -> Record:
    """The same record, its output a loop of four tokens."""
    n = record.requests[0].completion_tokens
    record.requests[0].output_ids = ([1, 2, 3, 4] * n)[:n]
    assert Cell(record).verdict.label == "flagged:looping"
    return record


def with_threads(arm: str, threads: int) -> Record:
    record = make_record(arm)
    record.server.settings = {"hardware.threads": threads, "server.max_total_tokens": 1000 * threads}
    return record


def test_unlike_server_settings_stand_above_every_table_and_in_comparisons() -> None:
    records = [with_threads("native", 2), with_threads("ring", 1)]
    for name in TABLES:
        assert any("hardware.threads 1 / 2" in line for line in build(name, Study(records)).header), name
    assert "not all was measured alike: hardware.threads 1 / 2" in render(
        compare_arms(records, "native", "ring", "step_ms"), "native", "ring", 5
    )
    alike = [with_threads("native", 2), with_threads("ring", 2), make_record("dense")]
    assert not any("unlike" in line for line in build("2", Study(alike)).header)


def test_a_record_that_cannot_be_read_is_told_of_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arm in ("native", "ring"):
        write_record(tmp_path, make_record(arm))
    path = next((tmp_path / "points").glob("*/record.json"))
    path.write_text(path.read_text().replace("test cpu", "best cpu"))
    assert main(["check", "--results", str(tmp_path)]) == 1
    assert "1 of 1 records are valid, 1 more could not be read" in capsys.readouterr().out
    main(["table", "2", "--results", str(tmp_path)])
    assert "1 record of this set could not be read" in capsys.readouterr().out
    main(["report", "--results", str(tmp_path), "--out", str(tmp_path / "r.html")])
    assert (tmp_path / "r.html").read_text().count("1 record of this set could not be read") > 3
    assert "could not be read" in summarise(Study([], unreadable=2)).doubtful[0]


def test_a_loop_is_no_best_depth_where_another_depth_has_none() -> None:
    records = [make_record("native", depth=3, step_ms=20), loop(make_record("native", depth=7, step_ms=5))]
    records += [make_record("ring", depth=3, step_ms=10)]
    row = frame("3", records).query("hardware == 'cpu'").iloc[0]
    assert row["native_depth"] == "3" and row["native_tpot_ms_flag"] == ""
    (alone,) = [frame("3", [records[1]]).query("hardware == 'cpu'").iloc[0]]
    assert alone["native_depth"] == "7" and "loops" in alone["native_tpot_ms_flag"]


def test_an_arm_of_another_setting_alone_has_a_row_that_says_which() -> None:
    records = [make_record("native", seed=seed) for seed in range(2)] + [
        make_record("ring", kv_budget_mib=64)
    ]
    rows = frame("2", records).query("hardware == 'cpu'")
    assert rows.set_index("arm").loc["ring", "step_ms_verdict"] == "measured only at KV budget MiB = 64"


def test_checkpoints_of_one_name_are_told_apart() -> None:
    records = [
        make_record("native", checkpoint="aaaa1111ffff"),
        make_record("native", checkpoint="bbbb2222ffff"),
    ]
    rows = frame("2", records).query("hardware == 'cpu'")
    assert rows["model"].to_list() == ["tiny (aaaa1111)", "tiny (bbbb2222)"]


def test_pools_of_another_server_are_no_row() -> None:
    pools = [Pool(role="target", tokens=999_999, bytes=1 << 40), Pool(role="draft", tokens=9, bytes=1 << 40)]
    odd = make_record("ring", record={"server": ServerInfo(pools=pools, engine_report={"mode": "windowed"})})
    assert not Cell(odd).verdict.of_point
    rows = frame("memory", [make_record("native"), odd]).query("hardware == 'cpu'")
    assert rows["arm"].to_list() == ["native"]


def shown(records: list[Record], folder: Path) -> str:
    console = Console(width=170)
    with console.capture() as capture:
        demo.show(records, folder, console)
    return capture.get()


def test_the_demo_averages_no_invalid_record_and_tells_of_a_busy_machine(tmp_path: Path) -> None:
    records = [make_record(arm, seed=seed) for arm in ("native", "ring") for seed in range(3)]
    plain = shown(records, tmp_path)
    odd = make_record("native", seed=3, step_ms=1.0)
    odd.server.arguments = {"speculative_num_draft_tokens": 3, "speculative_algorithm": "EAGLE"}
    assert not Cell(odd).verdict.valid
    beside = shown([*records, odd], tmp_path)
    assert "left out" in beside
    assert [line for line in plain.splitlines() if "│" in line or "native " in line][1:] == [
        line for line in beside.splitlines() if ("│" in line or "native " in line) and "left out" not in line
    ][1:]
    records[0].environment = {"load_average": [9.0, 3.0, 2.0], "usable_cores": 2}
    assert "1 of 6 were measured on a busy machine" in shown(records, tmp_path)


def test_parts_of_one_growing_log_count_once() -> None:
    def part(repeat: int, steps: int) -> Record:
        whole = make_record("native", steps=40)
        for name, values in whole.decode_steps:
            setattr(whole.decode_steps, name, values[:steps])
        point = whole.point.model_copy(update={"repeat": repeat})
        return whole.model_copy(
            update={"source": "imported", "point": point, "key": point.key, "requests": []}
        )

    records = [part(0, 18), part(1, 22), part(2, 40)]
    assert copies(records) == {records[0].key: records[2].key, records[1].key: records[2].key}
    other = make_record("native", seed=4, steps=40).model_copy(update={"source": "imported", "requests": []})
    assert copies([records[2], other]) == {}


def test_a_smoke_test_hides_no_other_run() -> None:
    """Many short runs of one depth make neither the longer ones nor another depth vanish."""
    long = [make_record(arm, depth=7, max_new_tokens=900) for arm in ("native", "ring")]
    short = [
        make_record(arm, depth=3, max_new_tokens=600, context_tokens=2048, seed=seed)
        for arm in ("native", "ring") for seed in range(2)
    ]  # fmt: skip
    more = [make_record(arm, depth=3, max_new_tokens=600, task="cwe") for arm in ("native", "ring")]
    for name, column in (("1", "ring_step_ms"), ("2", "step_ms"), ("9", "accept_length"), ("13", "ring_al")):
        rows = frame(name, long + short + more).query("hardware == 'cpu'")
        assert rows[column].notna().all(), name
        assert set(rows["context_tokens"]) == {2048, 8192}, name
    header = build("2", Study(long + short + more)).header
    assert any(
        "at S = 8,192 (niah_multiquery_enum) they stand for new tokens = 900" in line for line in header
    )
    assert any("S = 2,048 (niah_multiquery_enum)" in line and "d = 3" in line for line in header)


def test_a_dumb_terminal_gets_the_table_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(tmp_path, make_record("native"))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["table", "1", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "native step ms" in shown and "…" not in shown


def test_a_comparison_names_a_busy_machine() -> None:
    records = [make_record(arm) for arm in ("native", "ring")]
    records[0].environment |= {"load_average": [9.0, 3.0, 2.0], "usable_cores": 2}
    text = render(compare_arms(records, "native", "ring", "step_ms"), "native", "ring", 5)
    assert "1 record of these came from a busy machine" in text


def test_a_rate_of_the_frontier_has_the_interval_of_its_tpot() -> None:
    records = [make_record("native", batch=batch) for batch in (1, 2)]
    rows = frame("pareto", records).set_index("batch")
    tpot = Cell(records[1]).statistics.tpot_ms  # type: ignore[union-attr]
    assert rows.loc[2, "user_tokens_per_s_low"] == pytest.approx(1000 / tpot.high)
    assert rows.loc[2, "gpu_tokens_per_s_high"] == pytest.approx(2 * 1000 / tpot.low)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"task_params": {"keys": 16}}, "parameters of the input = {'keys': 16}"),
        ({"tp": 2}, "TP = 2"),
        ({"dtype": "float32"}, "dtype = float32"),
        ({"max_new_tokens": 900, "repetition_penalty": 1.0}, "penalty = 1.0, new tokens = 900"),
    ],
)
def test_every_table_of_steps_says_where_else_a_context_was_measured(
    setting: dict[str, Any], told: str
) -> None:
    records = [
        make_record(arm, context_tokens=context)
        for arm in ("native", "ring") for context in (2048, 4096)
    ]  # fmt: skip
    records += [make_record(arm, **setting) for arm in ("native", "ring")]
    for name, column in (("1", "ring_step_ms"), ("2", "step_ms"), ("9", "accept_length"), ("13", "ring_al")):
        rows = frame(name, records).query("hardware == 'cpu' and context_tokens == 8192")
        assert set(rows[f"{column}_verdict"]) == {f"measured only at {told}"}, name
    assert f"native d=7: measured only at {told}" in str(frame("3", records).to_dict())


def test_depths_of_a_fit_have_outputs_of_one_length() -> None:
    records = [make_record(arm, depth=d) for arm in ("native", "ring") for d in (5, 6, 7)]
    records += [make_record(arm, depth=d, max_new_tokens=900) for arm in ("native", "ring") for d in (2, 3)]
    row = frame("6", records).query("hardware == 'cpu'").iloc[0]
    assert row["gammas"] == "4, 5, 6"
    row = frame("3", records).query("hardware == 'cpu'").iloc[0]
    assert "native d=2: measured only at new tokens = 900" in row["missing"]


def test_a_contexts_own_length_counts_in_every_table() -> None:
    records = [make_record(arm, context_tokens=c) for arm in ("native", "ring") for c in (2048, 4096)]
    records += [make_record(arm, max_new_tokens=900) for arm in ("native", "ring")]
    records += [
        make_record(arm, task="cwe", max_new_tokens=900, context_tokens=4096) for arm in ("native", "ring")
    ]
    for name in ("3", "13"):
        rows = frame(name, records).query("hardware == 'cpu'")
        found = set(zip(rows["context_tokens"], rows["task"], strict=True))
        assert found == {(c, "niah_multiquery_enum") for c in (2048, 4096, 8192)} | {(4096, "cwe")}, name
    spread = frame("spread", records).query("hardware == 'cpu' and arm == 'ring'").set_index("context_tokens")
    assert spread["inputs"].to_dict() == {2048: 1, 4096: 2, 8192: 1}
    assert set(frame("bandwidth", records).query("hardware == 'cpu'")["context_tokens"]) == {2048, 4096, 8192}


def labels(name: str, records: list[Record]) -> str:
    figure = make(name, Study(records))
    assert figure is not None
    texts = [
        t.get_text()
        for axis in figure.axes
        for t in (axis.title, *(axis.get_legend_handles_labels()[1:]))[:1]
    ]
    texts += [text for axis in figure.axes for text in axis.get_legend_handles_labels()[1]]
    close(figure)
    return " ".join(texts)


def test_a_figure_names_what_its_lines_leave_out_and_which_arm_they_are() -> None:
    records = [make_record(arm, context_tokens=c) for arm in ("native", "windowed") for c in (2048, 4096)]
    records += [make_record(arm, depth=3) for arm in ("native", "windowed")]
    assert "windowed, d = 7; without S = 8,192 (d = 3)" in labels("3", records)
    assert "without S = 8,192 (d = 3)" in labels("step", records)
    assert "S = 8,192" in labels("2", records), "the longest context has its own depth"
    assert "(output loops)" in labels("context", [loop(make_record("native"))])


def test_figure_3_has_a_line_for_every_model() -> None:
    names = [f"model{i}" for i in range(6)]
    text = labels("3", [make_record(arm, model=name) for name in names for arm in ("native", "ring")])
    assert all(name in text for name in names)


def test_the_reports_headline_marks_looping_outputs() -> None:
    found = summarise(Study([loop(make_record(arm)) for arm in ("native", "ring")])).headline
    assert "(output loops)" in " ".join(found)


def test_a_saving_and_a_fit_are_of_prompts_that_both_have() -> None:
    def row(name: str, records: list[Record]) -> pd.Series:
        return frame(name, records).query("hardware == 'cpu'").iloc[0]

    records = [make_record("native", seed=seed, step_ms=60 + 30 * seed, noise=0) for seed in range(3)]
    records.append(make_record("ring", step_ms=40, noise=0))
    found = row("1", records)
    assert found["saving_ms"] == pytest.approx(20, rel=0.01) and found["prompts"] == 1
    fit = [make_record("native", depth=d, step_ms=10 * d, noise=0) for d in (3, 5, 7, 9)]
    more = [make_record("native", seed=seed, step_ms=200) for seed in (1, 2)]
    assert row("6", fit + more)["slope_ms"] == pytest.approx(10, rel=0.01)
    best = [make_record("native", depth=d, step_ms=s, noise=0) for d, s in ((3, 20), (7, 30))]
    easy = [make_record("native", depth=7, step_ms=1, seed=seed) for seed in (1, 2)]
    assert row("3", best + easy)["native_depth"] == row("3", best)["native_depth"]


def test_equation_3_holds_in_its_row() -> None:
    records = [make_record(arm, seed=seed) for arm in ("native", "ring") for seed in range(2)]
    records += [loop(make_record(arm, seed=2, step_ms=ms)) for arm, ms in (("native", 90), ("ring", 9))]
    row = frame("13", records).query("hardware == 'cpu'").iloc[0]
    assert row["cost_factor_n"] == row["acceptance_factor_n"] == row["ring_over_native_n"] == 2
    assert row["cost_factor"] * row["acceptance_factor"] == pytest.approx(row["ring_over_native"], rel=0.02)


def test_one_run_at_another_depth_hides_no_pair() -> None:
    records = [make_record(arm, depth=5, seed=seed) for arm in ("native", "ring") for seed in range(3)]
    records.append(make_record("ring", depth=7))
    row = frame("1", records).query("hardware == 'cpu'").iloc[0]
    assert row["depth"] == 5 and row["step_ratio_n"] == 3


def test_rows_of_kv_precisions_say_their_depth_and_length() -> None:
    records = [make_record(arm) for arm in ("native", "ring")]
    records += [
        make_record(arm, kv_dtype="fp8_e4m3", depth=3, max_new_tokens=900) for arm in ("native", "ring")
    ]
    rows = frame("kv_dtype", records).query("hardware == 'cpu'").set_index("kv_dtype")
    assert rows["depth"].to_dict() == {"bfloat16": 7, "fp8_e4m3": 3}
    assert rows["new_tokens"].to_dict() == {"bfloat16": 512, "fp8_e4m3": 900}


def test_header_lines_name_the_checkpoint_that_they_are_of() -> None:
    records = [make_record("ring", checkpoint="a" * 9, depth=d) for d in (5, 7)]
    records += [make_record("ring", checkpoint="b" * 9, depth=d) for d in (3, 5)]
    text = " ".join(build("2", Study(records)).header)
    assert "tiny (aaaaaaaa) on cpu: where no column" in text and "tiny (bbbbbbbb) on cpu: where no" in text


def test_a_dense_output_that_loops_keeps_its_tpot() -> None:
    """One token a step, whatever the text."""
    records = [make_record("dense", seed=seed) for seed in range(2)]
    n = records[0].requests[0].completion_tokens
    records[0].requests[0].output_ids = ([1, 2, 3, 4] * n)[:n]
    assert Cell(records[0]).verdict.label == "ok" and "repeat themselves" in Cell(records[0]).verdict.text
    row = frame("2", records).query("arm == 'dense' and hardware == 'cpu'").iloc[0]
    assert row["tpot_ms_n"] == row["step_ms_n"] == 2


def test_counts_beyond_64_bits_are_a_damaged_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = make_record("native")
    odd.decode_steps.queued_requests[2] = 10**19
    for record in (odd, make_record("ring")):
        write_record(tmp_path, record)
    assert [r.point.arm for r in load(tmp_path)] == ["ring"]
    assert "beyond 64 bits" in capsys.readouterr().err
    report = {"mode": "ring", "target_tokens": "9" * 400, "target_tokens_without_ring": "5"}
    record = make_record("ring")
    record.server.engine_report = report
    assert frame("memory", [record]).query("hardware == 'cpu'")["tokens_back"].isna().all()


def test_the_reports_first_page_tells_of_unlike_machines() -> None:
    found = summarise(Study([with_threads("native", 2), with_threads("ring", 1)])).doubtful
    assert any("hardware.threads 1 / 2" in text for text in found)


def test_a_setting_that_is_not_the_papers_is_said_above_its_verdicts() -> None:
    where = {"model": "qwen3.6-35b-a3b", "hardware": "h200", "context_tokens": 1_040_000, "tp": 2}
    study = Study([make_record(arm, depth=5, **where) for arm in ("native", "ring")])
    text = " ".join(build("1", study).header)
    assert "not the paper's setting (h200, d = 5, W = 252, TP = 2)" in text


def test_the_same_log_again_leaves_no_twin(tmp_path: Path) -> None:
    line = (
        "[2026-11-30 02:28:{:02d}] Decode batch, #running-req: 1, #token: {}, token usage: 0.12, "
        "accept len: 2.00, accept rate: 0.33, cuda graph: True, gen throughput (token/s): 50, #queue-req: 0\n"
    )
    log = tmp_path / "server.log"
    log.write_text("".join(line.format(i, 8200 + 2 * i) for i in range(20)))
    words = ["import-log", str(log), "--results", str(tmp_path / "r"), "--model", "m", "--hardware", "h100"]
    for _ in range(2):
        assert main([*words, "--arm", "native", "--context", "8192", "--depth", "7"]) == 0
    assert not (tmp_path / "r" / "set_aside").exists()
