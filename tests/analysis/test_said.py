"""What a reader is told beside the numbers: what is unlike, left out, or measured elsewhere alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from factory import make_record
from rich.console import Console

from analysis import demo
from analysis.cli import main
from analysis.compare import compare_arms, render
from analysis.copies import copies
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
    (arm,) = (arm for arm in rows["arm"] if arm.startswith("ring"))
    assert arm == "ring (measured only at KV budget MiB = 64)"
    assert rows.set_index("arm").loc[arm, "step_ms_verdict"] == "not measured here"


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
