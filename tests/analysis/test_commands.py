"""Figures, report, comparison, exports, foreign logs and the command line."""

from __future__ import annotations

import csv
import gzip
import io
import re
from pathlib import Path

import pandas as pd
import pytest
from factory import make_record
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import cli, compare, export, figures, load
from analysis.cli import main
from analysis.files import write_text
from analysis.foreign import marked_pieces
from analysis.progress import shown
from analysis.report import summarise, write_report
from analysis.spreadsheets import no_formula
from analysis.study import Study
from analysis.tables import TABLES, build, render
from harness.errors import ConfigError, RecordError
from harness.measure.profile import SKIPPED_STEPS
from harness.points import Point
from harness.records import Outcome, Record, read_all, write_record

DRAWN = ("2", "3", "4", "fit", "dose", "memory", "batches", "step", "context")


@pytest.mark.parametrize("name", DRAWN)
def test_figures_have_the_same_bytes_twice(name: str, records: list[Record], tmp_path: Path) -> None:
    files: list[dict[str, bytes]] = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        assert figures.draw(name, Study(records), folder).stem is not None
        files.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert files[0] == files[1]
    assert {Path(n).suffix for n in files[0]} == {".png", ".svg", ".pdf"}


def test_traced_and_tp2_figures(tmp_path: Path) -> None:
    phases = {
        "source": "torch", "iterations": 9, "verify_base_ms": 5.0, "verify_overhead_ms": 1.0,
        "draft_ms": 4.0, "iteration_ms": 10.0,
    }  # fmt: skip
    records = [make_record("native", probe="trace", record={"extras": {"phases": phases}})]
    records += [make_record(arm, tp=2, batch=b) for arm in ("native", "ring") for b in (1, 2)]
    for name in ("decomposition", "5"):
        assert figures.draw(name, Study(records), tmp_path).stem is not None


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_without_data_says_what_it_needs(name: str, tmp_path: Path) -> None:
    failed = make_record(outcome=Outcome.SERVER_DIED, reason="gone", record={"server": {}})
    drawn = figures.draw(name, Study([failed]), tmp_path)
    assert "it needs" in drawn.note and not list(tmp_path.iterdir())


def test_an_older_picture_does_not_stay_where_nothing_is_drawn(tmp_path: Path) -> None:
    stem = figures.stem_of("3")
    for name in (f"{stem}.png", f"{stem}.svg", "another.png"):
        (tmp_path / name).write_text("old")
    drawn = figures.draw("3", Study([]), tmp_path)
    assert "older picture" in drawn.note
    assert [path.name for path in tmp_path.iterdir()] == ["another.png"]


@pytest.mark.parametrize("count", [1, None])
def test_report_is_one_file_without_network(count: int | None, records: list[Record], tmp_path: Path) -> None:
    path = write_report(Study(records[:count]), tmp_path / "deep" / "report.html", tmp_path)
    page = path.read_text()
    assert not re.search(r"""(src|href)=["']?https?:|@import|<script""", page)
    assert 'href="../points/' in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "ids of inlined figures do not meet"
    for target in re.findall(r'href="#([^"]+)"', page):
        assert target in ids


def test_report_escapes_what_records_say(tmp_path: Path) -> None:
    record = make_record(outcome=Outcome.SERVER_DIED, reason="<script>alert(1)</script>")
    assert "<script>" not in write_report(Study([record]), tmp_path / "r.html", tmp_path).read_text()


def test_summary_in_plain_sentences(records: list[Record]) -> None:
    found = summarise(Study(records))
    assert "47 records" in found.measured[0] and "46 of 47 are valid" in found.measured[0]
    assert any("S = 32,768" in line and "1.40 times" in line for line in found.headline)
    assert any("out_of_memory_at_run" in line for line in found.doubtful)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figures_files_have_the_commands_name(name: str) -> None:
    assert figures.stem_of(name) == figures.stem_of(f"figure-{name}") == f"figure_{name}"


def test_figures_write_lengths_in_full_and_explain_hollow_markers() -> None:
    batches = [
        make_record(arm, step_ms=18 + 9 * batch * batch, batch=batch, context_tokens=length)
        for arm in ("native", "ring")
        for batch in (1, 2, 4)
        for length in (261_000,)
    ]
    figure = figures.make("4", Study(batches))
    assert figure is not None
    axis, (legend,) = figure.axes[0], figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert "hollow: not on its arm's frontier" in texts and "S = 261,000" in axis.get_title()
    right = max(text.xy[0] for text in axis.texts)  # type: ignore[attr-defined]
    assert axis.get_xlim()[1] > 1.1 * right, "labels to the right of their markers are not cut"


# -- comparison --------------------------------------------------------------------------------------------


def test_equal_sets_cannot_be_told_apart(records: list[Record]) -> None:
    found = compare.compare_sets(records, records, "tpot_ms")
    assert found.effects and not any(e.told_apart for e in found.effects)
    assert found.invalid == 2 and found.only_a == found.only_b == 0
    assert compare.exit_status(found, 5) == 0
    assert "cannot be told apart" in compare.render(found, "a", "b", 5)


def test_a_regression_fails_and_an_improvement_does_not() -> None:
    before = [make_record("ring", step_ms=20, seed=s) for s in range(4)]
    after = [make_record("ring", step_ms=24, seed=s, checkpoint="other") for s in range(4)]
    found = compare.compare_sets(before, after, "step_ms")
    assert found.effects[0].ratio.value == pytest.approx(1.2, rel=0.01)
    assert compare.exit_status(found, 5) == 1 and compare.exit_status(found, 30) == 0
    assert compare.exit_status(compare.compare_sets(after, before, "step_ms"), 5) == 0


def test_fewer_accepted_tokens_are_worse() -> None:
    sets = [[make_record("ring", alpha=a, seed=s, steps=100) for s in range(4)] for a in (1.0, 0.6)]
    found = compare.compare_sets(*sets, "accept_length")
    assert found.effects[0].worse_percent > 10 and compare.exit_status(found, 5) == 1


def test_arms_are_paired_by_prompt_and_depth(records: list[Record]) -> None:
    found = compare.compare_arms(records, "native", "ring", "step_ms")
    longest = next(e for e in found.effects if "S=32768" in e.label)
    assert longest.pairs == 3 and longest.ratio.value == pytest.approx(1 / 1.4, rel=0.01)


def test_windows_pair_with_equal_windows_only() -> None:
    records = [
        make_record(arm, window_tokens=window, sink_tokens=sink, step_ms=10.0 if window == 64 else 40.0)
        for arm in ("windowed", "ring")
        for window, sink in ((64, 4), (252, 4), (252, 8))
    ]
    found = compare.compare_arms(records, "windowed", "ring", "step_ms")
    assert [e.pairs for e in found.effects] == [1, 1, 1]
    assert all(e.ratio.value == pytest.approx(1, rel=0.05) for e in found.effects)
    alone = compare.compare_arms([records[0], records[-1]], "windowed", "ring", "step_ms")
    assert not alone.effects and (alone.only_a, alone.only_b) == (1, 1)


def test_an_effect_averages_over_prompts_and_repeats_only() -> None:
    """Settings that a point's label leaves out make effects of their own, named by what differs."""
    records = [
        make_record(arm, seed=seed, tp=tp) for arm in ("native", "ring") for seed in (0, 1) for tp in (1, 2)
    ]
    found = compare.compare_arms(records, "native", "ring", "step_ms")
    assert [e.pairs for e in found.effects] == [2, 2]
    assert [e.label.rpartition(" ")[2] for e in found.effects] == ["tp=1", "tp=2"]


def test_nothing_in_common_is_status_2() -> None:
    found = compare.compare_sets([make_record(seed=1)], [make_record(seed=2)], "tpot_ms")
    assert compare.exit_status(found, 5) == 2


# -- exports -----------------------------------------------------------------------------------------------


def test_exports_read_back(records: list[Record], tmp_path: Path) -> None:
    paths = export.write(records, tmp_path)
    assert [p.name for p in paths] == [
        "points.parquet", "points.csv", "decode_steps.parquet", "decode_steps.csv",
    ]  # fmt: skip
    points, steps = export.read(paths[0]), export.read(paths[2])
    assert tuple(points.columns) == export.POINT_COLUMNS and tuple(steps.columns) == export.STEP_COLUMNS
    assert len(points) == len(records) and len(steps) == sum(len(r.decode_steps) for r in records)
    assert export.read(paths[1])["key"].tolist() == points["key"].tolist()


def test_exported_points_have_every_field(tmp_path: Path) -> None:
    record = make_record(temperature=0.5, task_params={"keys": 8}, kv_budget_mib=64)
    (row,) = export.point_frame([record]).to_dict("records")
    assert set(Point.model_fields) <= set(row)
    assert (row["temperature"], row["task_params"], row["kv_budget_mib"]) == (0.5, '{"keys":8}', 64)
    for path in export.write([record], tmp_path):
        assert len(export.read(path))


def test_no_text_of_a_record_is_a_formula_in_csv(tmp_path: Path) -> None:
    reason = '=HYPERLINK("http://x")'
    paths = export.write([make_record(outcome=Outcome.SERVER_DIED, reason=reason)], tmp_path)
    (row,) = csv.DictReader(next(p for p in paths if p.name == "points.csv").open())
    assert row["reasons"] == f"'{reason}"
    assert row["depth"] == "7" and row["arm"] == "native"


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"), ("+cmd|x", "'+cmd|x"), ("-2+3+cmd|x", "'-2+3+cmd|x"), ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"), ("-0.5", "-0.5"), ("+3.1%", "+3.1%"), ("-0.2 [-0.4, 0.1]", "-0.2 [-0.4, 0.1]"),
        ("-", "-"), ("a=b", "a=b"), ("+4.00 ms from gamma 4 (BIC 87)", "+4.00 ms from gamma 4 (BIC 87)"),
        ("-1 +HYPERLINK(A1)", "'-1 +HYPERLINK(A1)"), (-0.5, -0.5), (None, None),
    ],
)  # fmt: skip
def test_formulas_are_told_from_numbers(text: object, cell: object) -> None:
    assert no_formula(text) == cell


@pytest.mark.parametrize("name", ["m #1", "#1", 'm "#1", x'])
def test_no_text_is_taken_for_a_comment(name: str, tmp_path: Path) -> None:
    """A model may be called so."""
    record = make_record().model_copy(deep=True)
    record.point = record.point.model_copy(update={"model": name})
    text = render.render(build("2", Study([record])), "csv")
    found = pd.read_csv(io.StringIO(text), comment="#")
    assert name in set(found["model"]) and found["step_ms"].notna().any()
    points = next(p for p in export.write([record], tmp_path) if p.name == "points.csv")
    row = pd.read_csv(points, comment="#").iloc[0]
    assert (row["model"], row["target_pool_tokens"]) == (name, 1_100_000)


def test_an_export_of_another_version_says_what_to_do(tmp_path: Path) -> None:
    path = write_text(tmp_path / "points.csv", "export_schema_version,key\n0,ab\n")
    with pytest.raises(RecordError, match="export it again"):
        export.read(path)


# -- foreign logs ------------------------------------------------------------------------------------------

STEP = (
    "[2026-11-30 05:10:{:02d} TP0] Decode batch, #running-req: {}, #token: {}, token usage: 0.1, "
    "accept len: 2.00, accept rate: 0.17, gen throughput (token/s): {}.00, #queue-req: 0\n"
)


def step(second: int, running: int) -> str:
    return STEP.format(second, running, 9000 * running, 2 * running)


def foreign_log() -> str:
    body = step(0, 1) + "RK_DEC_BEGIN tag=native_b1 B=1 d=7\n"
    body += "".join(step(i, 1) for i in range(1, 12)) + "RK_DEC_END tag=native_b1\n"
    body += step(20, 1) + "RK_DEC_BEGIN tag=native_b2 B=2\n"
    return body + "".join(step(30 + i, 2) for i in range(12))


def test_marks_cut_a_log_into_pieces() -> None:
    pieces = marked_pieces(foreign_log().encode())
    assert [(p.tag, p.batch, p.closed) for p in pieces] == [("native_b1", 1, True), ("native_b2", 2, False)]
    assert pieces[0].body.count(b"Decode batch") == 11


PIECES = st.sampled_from(
    [b"RK_DEC_BEGIN tag=a B=" + b"9" * 5000 + b"\n", b"RK_DEC_BEGIN B=\n", b"RK_DEC_END\n"]
)
ARGUMENTS = ["--model", "m", "--hardware", "h", "--arm", "native", "--context", "9000"]


def test_marked_logs_become_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_text(tmp_path / "s.log", foreign_log())
    assert main(["import-log", str(log), "--results", str(tmp_path / "r"), *ARGUMENTS]) == 0
    found = {r.point.batch: r for r in read_all(tmp_path / "r")[0]}
    assert sorted(found) == [1, 2]
    assert {r.source for r in found.values()} == {"imported"}
    assert len(found[1].decode_steps) == 11
    assert main(["table", "2", "--results", str(tmp_path / "r"), "--format", "csv"]) == 0
    assert "m,h,9000,imported,native" in capsys.readouterr().out


def test_a_tag_that_comes_twice_is_two_records(tmp_path: Path) -> None:
    log = write_text(tmp_path / "s.log", foreign_log() * 2)
    assert main(["import-log", str(log), "--results", str(tmp_path / "r"), *ARGUMENTS]) == 0
    assert len(read_all(tmp_path / "r")[0]) == 4


def test_a_damaged_compressed_log_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = bytearray(gzip.compress(foreign_log().encode()))
    body[40:60] = b"\xff" * 20
    (tmp_path / "s.log.gz").write_bytes(body)
    assert main(["import-log", str(tmp_path / "s.log.gz"), "--results", str(tmp_path), *ARGUMENTS]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_time_range_becomes_a_record(tmp_path: Path) -> None:
    log = write_text(tmp_path / "s.log", foreign_log())
    arguments = ["import-log", str(log), "--results", str(tmp_path / "r"), *ARGUMENTS, "--batch", "2"]
    assert main([*arguments, "--from", "2026-11-30 05:10:30"]) == 0
    assert len(read_all(tmp_path / "r")[0][0].decode_steps) == 12
    assert main([*arguments, "--from", "yesterday"]) == 2
    assert main([*arguments, "--from", "2026-11-30 05:10:30+02:00"]) == 2
    assert main([*arguments, "--from", "2027-01-01 00:00:00"]) == 2


def test_a_tag_that_comes_again_is_a_repeat(tmp_path: Path) -> None:
    log = write_text(
        tmp_path / "s.log", foreign_log().replace("native_b2", "native_b1").replace("B=2", "B=1")
    )
    assert main(["import-log", str(log), "--results", str(tmp_path / "r"), *ARGUMENTS]) == 0
    assert sorted(r.point.repeat for r in read_all(tmp_path / "r")[0]) == [0, 1]


@settings(max_examples=100)
@given(st.data())
def test_any_log_is_imported_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    body = bytearray(foreign_log().encode())
    if data.draw(st.booleans(), label="gzip"):
        body = bytearray(gzip.compress(body, mtime=0))
    edits = st.tuples(st.integers(0, len(body)), st.integers(0, 9), st.binary(max_size=9) | PIECES)
    for at, cut, put in data.draw(st.lists(edits, max_size=3)):
        body[at : at + cut] = put
    folder = tmp_path_factory.mktemp("import")
    (folder / "s.log").write_bytes(body)
    status = main(["import-log", str(folder / "s.log"), "--results", str(folder), *ARGUMENTS])
    stored, errors = read_all(folder)
    assert (status, errors) == (0 if stored else 2, [])


# -- command line ------------------------------------------------------------------------------------------


def test_commands_on_a_result_set(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--results", str(results)]
    assert main(["table", "2", *where]) == 0
    assert "Table 2" in capsys.readouterr().out
    assert main(["tables", *where, "--out", str(tmp_path / "t")]) == 0
    assert "tables of 47 records in 4 formats" in capsys.readouterr().out
    assert len(list((tmp_path / "t").iterdir())) == len(TABLES) * 4
    assert main(["figure", "2", *where, "--out", str(tmp_path / "f")]) == 0
    assert f"{tmp_path / 'f' / 'figure_2.png'}, .svg, .pdf\n" in capsys.readouterr().out
    assert main(["report", *where, "--out", str(tmp_path / "r.html")]) == 0
    assert main(["export", *where, "--out", str(tmp_path / "e")]) == 0
    said = capsys.readouterr()
    assert "r.html: 47 records" in said.out and "points.csv: 47 rows" in said.out and not said.err
    assert main(["compare", "native", "ring", "--threshold", "50", *where]) == 0
    assert main(["check", *where]) == 1
    assert "46 of 47 records are valid" in capsys.readouterr().out


def test_errors_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "2", "--results", str(tmp_path)]) == 2
    assert main(["table", "99", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("error: ") == 2


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "native", "ring", "--threshold", "nan"],
        ["table", "bandwidth", "--bandwidth", "0"],
        ["table", "bandwidth", "--bandwidth", "inf"],
        ["trace", "x.json", "--most", "-1"],
    ],
)
def test_numbers_without_a_meaning_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)


def test_a_second_results_folder_is_refused(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["table", "2", "--results", str(results), "--results", str(results)])
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == ""
    assert "--results is given twice" in said.err and "compare A B" in said.err


def test_words_that_would_be_ignored_are_refused(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "2", "--bandwidth", "5", "--results", str(results)]) == 2
    assert main(["compare", "native", "rign", "--results", str(results)]) == 2
    assert "rign is neither an arm" in capsys.readouterr().err


def test_what_cannot_be_compared_is_refused_by_name(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--results", str(results)]
    for words, said in (
        (["ring", "ring", *where], "ring would be compared with itself"),
        (["ring", str(results)], "ring is an arm and the other one a folder"),
        ([str(results), "ring", *where], "ring is an arm and the other one a folder"),
        ([str(results), str(results), *where], "--results is for two arms"),
    ):
        assert main(["compare", *words]) == 2
        shown = capsys.readouterr()
        assert said in shown.err and not shown.out


def test_help_names_every_table_and_figure() -> None:
    assert set(cli._TABLES) == {name for name in TABLES if not name.isdecimal()}
    assert set(cli._FIGURES) == {name for name in figures.FIGURES if not name.isdecimal()}


def test_a_figure_that_cannot_be_drawn_fails(results: Path, tmp_path: Path) -> None:
    assert main(["figure", "decomposition", "--results", str(results), "--out", str(tmp_path)]) == 1


def test_a_record_with_unreadable_extras_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path, make_record())
    for seed, extras in enumerate(({"penalty": 5}, {"output_margins": [None]}), 1):
        write_record(tmp_path, make_record(seed=seed, record={"extras": extras}))
    assert main(["check", "--results", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "1 of 1 records are valid" in shown.out and shown.err.count("left out: ") == 2


def test_a_trace_leaves_out_as_many_iterations_as_the_tables() -> None:
    options = cli._parser().parse_args(["trace", "x.json"])
    assert options.skip == SKIPPED_STEPS


def test_a_terminal_sees_what_a_long_command_is_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert list(shown([1, 2], "reading records")) == [1, 2]
    assert "reading records" in capsys.readouterr().err


def test_dollar_signs_in_names_are_no_formula(tmp_path: Path) -> None:
    study = Study([make_record("ring", model=r"a $\frac$")])
    assert figures.draw("step", study, tmp_path).stem is not None


def test_without_a_repository_the_reference_set_is_not_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(load, "REFERENCE", tmp_path / "site-packages" / "results" / "reference")
    assert main(["tables"]) == 2
    said = capsys.readouterr().err
    assert "--results" in said and "in the repository" in said and "harness.demo" in said


def test_a_damaged_record_is_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(tmp_path, make_record())
    broken = write_record(tmp_path, make_record(seed=1)) / "record.json"
    broken.write_bytes(broken.read_bytes()[:100])
    assert main(["table", "1", "--results", str(tmp_path)]) == 0
    assert "damaged" in capsys.readouterr().err


def test_an_unwritable_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        write_text(tmp_path / "file" / "x.csv", "")
