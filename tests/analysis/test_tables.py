"""Every table from a small study: golden numbers, verdicts against the paper, renderings, missing cells."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from factory import make_record
from rich.console import Console

from analysis.estimators import Estimate
from analysis.figures import draw
from analysis.paper import all_claims, claim, paper_model
from analysis.study import Study, mean_of
from analysis.tables import TABLES, build, frame
from analysis.tables.base import INSIDE, NO_PAPER, NOT_MEASURED, OUTSIDE, Value
from analysis.tables.render import FORMATS, render, terminal
from harness.errors import ConfigError, RecordError
from harness.records import Outcome, Record

GOLDEN = Path(__file__).resolve().parent.parent / "data" / "analysis" / "golden"


@pytest.mark.parametrize("name", TABLES)
def test_golden(name: str, records: list[Record]) -> None:
    """Numbers as pinned; WRITE_GOLDEN=1 pins them anew."""
    text = render(build(name, Study(records)), "csv")
    path = GOLDEN / f"{name}.csv"
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    new, old = (pd.read_csv(io.StringIO(t), comment="#") for t in (text, path.read_text()))
    pd.testing.assert_frame_equal(new, old, rtol=1e-4, check_dtype=False)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", TABLES)
def test_every_format_renders_every_table(name: str, kind: str, records: list[Record]) -> None:
    table = build(name, Study(records))
    text = render(table, kind)
    assert "tiny on cpu" in text, "hardware and model stand above every table"
    if kind == "latex":
        assert text.count("{") == text.count("}")
        body = text[text.index("midrule") : text.index("bottomrule")]
        assert all(line.count(" & ") == len(table.columns) - 1 for line in body.splitlines() if "&" in line)
    if kind == "markdown":
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in rows}) == 1


def test_table_2_is_what_the_records_were_made_with(records: list[Record]) -> None:
    rows = frame("2", records).set_index(["hardware", "context_tokens", "arm"])
    native, ring = rows.loc[("cpu", 32768, "native")], rows.loc[("cpu", 32768, "ring")]
    assert native["step_ms"] == pytest.approx(28, rel=0.01)
    assert ring["step_ms"] == pytest.approx(20, rel=0.01)
    assert ring["step_native_over_arm"] == pytest.approx(1.4, rel=0.01)
    assert ring["step_native_over_arm_low"] < 1.4 < ring["step_native_over_arm_high"]
    assert native["tpot_ms"] == pytest.approx(native["step_ms"] / native["accept_length"], rel=0.02)
    assert set(rows.loc["cpu"]["step_ms_verdict"]) == {NO_PAPER}


def test_table_6_finds_the_step_and_both_slopes(records: list[Record]) -> None:
    rows = frame("table-6", records).set_index(["hardware", "arm"]).loc["cpu"]
    assert rows.loc["native", "slope_ms"] == pytest.approx(2.0, abs=0.05)
    assert rows.loc["ring", "slope_ms"] == pytest.approx(1.5, abs=0.05)
    assert rows.loc["native", "one_time_step"].startswith("+4.0")
    assert rows.loc["native", "gammas"] == "4, 5, 6, 7, 8"
    assert rows.loc["ring", "predicted_saving_ms"] == pytest.approx(2.0, abs=0.1)
    assert rows.loc["ring", "measured_saving_ms"] == pytest.approx(2.0, abs=0.1)


def paper_records(step_ring: float = 18.4, **more: Any) -> list[Record]:
    """Both arms of the paper's first model at its point."""
    where = {"model": "qwen3_6_35b", "hardware": "b200", "context_tokens": 1_040_000, **more}
    window = {"window_tokens": 4032, "sink_tokens": 64}
    return [
        make_record("native", step_ms=26.7, **where),
        make_record("ring", step_ms=step_ring, **window, **where),
    ]


def test_a_repetition_penalty_is_said_above_every_table() -> None:
    arms = ("native", "ring")
    said = "2 of 2 records have a repetition penalty (1.15), with which arms may write different texts"
    for penalty, found in ((1.15, True), (1.0, False)):
        table = build("2", Study([make_record(arm, repetition_penalty=penalty) for arm in arms]))
        assert any(said in line for line in table.header) is found


def test_verdicts_against_the_paper() -> None:
    rows = frame("1", paper_records()).iloc[0]
    assert rows["native_step_ms_verdict"] == INSIDE
    assert rows["ring_step_ms_verdict"] == INSIDE
    assert rows["step_ratio_verdict"] == INSIDE
    assert (rows["step_ratio_paper_low"], rows["saving_ms_paper_low"]) == (1.44, 7.3)
    rows = frame("1", paper_records(step_ring=24.0)).iloc[0]
    assert rows["ring_step_ms_verdict"] == OUTSIDE
    assert rows["step_ratio_verdict"] == OUTSIDE
    rows = frame("1", paper_records(context_tokens=261_000)).iloc[0]
    assert rows["native_step_ms_verdict"] == NO_PAPER, "another context is not the paper's cell"


def test_paper_models_not_measured_say_so(records: list[Record]) -> None:
    rows = frame("1", records)
    ghosts = rows[rows["hardware"] == "B200 (paper)"]
    assert len(ghosts) == 3
    assert set(ghosts["native_step_ms_verdict"]) == {NOT_MEASURED}
    assert list(ghosts["native_step_ms_paper_low"]) == [26.7, 33.9, 32.8]


def test_failed_and_invalid_points_show_their_reason() -> None:
    native, ring = paper_records()
    out = make_record(
        "native", depth=9, outcome=Outcome.OUT_OF_MEMORY_AT_START, reason="full", model="qwen3_6_35b",
        hardware="b200", context_tokens=1_040_000,
    )  # fmt: skip
    assert "native d=9: out of memory at start" in frame("3", [native, ring, out]).iloc[0]["missing"]
    native.requests[0].cached_tokens = 500_000
    row = frame("1", [native, ring]).iloc[0]
    assert pd.isna(row["native_step_ms"]) and row["native_step_ms_verdict"] == "cache hit"


def test_windowed_stands_in_for_a_missing_ring() -> None:
    study = Study([make_record("native"), make_record("windowed")])
    table = build("1", study)
    assert any("no ring" in line for line in table.header)
    assert table.frame().iloc[0]["ring_step_ms"] == pytest.approx(20, rel=0.02)


def test_probe_tables_read_extras() -> None:
    phases = {
        "source": "nsys", "iterations": 18, "verify_base_ms": 10.0, "verify_overhead_ms": 1.0,
        "draft_ms": 9.0, "iteration_ms": 20.0,
    }  # fmt: skip
    kernels = [
        {"name": "index_build", "phase": "draft", "calls_per_iteration": 1, "us_per_iteration": 900.5},
        {"name": "gemm", "phase": "verify", "calls_per_iteration": 9, "us_per_iteration": 5000},
    ]
    decision = {"steps": 400, "agreeing_steps": 360, "margin_mean": 4.0, "margin_at_flip": 0.4}
    mass = {"steps": 90, "in_window_mass": 0.8, "perturbation": 0.15, "tail_share": 0.2}
    found = {"trace": {"phases": phases, "kernels": kernels}, "decision": {"decision_probe": decision},
             "attention_mass": {"attention_mass": mass}}  # fmt: skip
    records = [make_record("native", probe=probe, record={"extras": x}) for probe, x in found.items()]
    assert frame("7", records).iloc[0]["overhead_percent"] == pytest.approx(100)
    assert list(frame("8", records).iloc[:1]["kernel"]) == ["index_build"], (
        "verify kernels are not the draft's"
    )
    row = frame("11", records).iloc[0]
    assert (row["agree_percent"], row["flip_percent"]) == (90, 10)
    assert row["agree_percent_low"] == pytest.approx(86.7, abs=0.2)
    assert frame("12", records).iloc[0]["in_window_percent"] == 80


def test_a_broken_extra_is_an_error_that_names_it() -> None:
    record = make_record("native", record={"extras": {"phases": {"draft_ms": -1}}})
    with pytest.raises(RecordError, match=r"extras\.phases"):
        frame("7", [record])


def test_claims_are_complete_and_sourced() -> None:
    claims = all_claims()
    assert len(claims) > 110
    assert all(row["source"] and row["place"] for row in claims)
    said = claim("table_6", "qwen3.6-35b-a3b", "niah_multiquery_enum", "windowed_over_native", "slope_drop")
    assert said is not None and (said.low, said.high) == (22, 40)
    assert claim("table_1", None, "niah_multiquery_enum", "native", "step") is None


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("qwen3_6_35b", "qwen3.6-35b-a3b"), ("Qwen3.6-35B-A3B-FP8", "qwen3.6-35b-a3b"),
        ("qwen3_5_122b", "qwen3.5-122b-a10b"), ("nemotron3_super_120b", "nemotron-3-super-120b-a12b"),
        ("tiny", None), ("custom", None),
    ],
)  # fmt: skip
def test_model_names(name: str, known: str | None) -> None:
    assert paper_model(name) == known


def test_a_verdict_needs_the_interval_to_touch_the_range() -> None:
    said = claim("table_1", "qwen3.6-35b-a3b", "niah_multiquery_enum", "native", "step")
    assert said is not None
    assert Value(Estimate(29, 28.0, 30), said).verdict == INSIDE
    assert Value(Estimate(29, 28.1, 30), said).verdict == OUTSIDE
    assert Value(Estimate(28), said).verdict == INSIDE, "no interval: the bare value"
    assert Value(None, said).verdict == NOT_MEASURED


def test_no_such_table() -> None:
    with pytest.raises(ConfigError, match="choose one of"):
        build("14", Study([]))


@pytest.mark.parametrize("name", TABLES)
def test_no_records_at_all(name: str) -> None:
    for kind in FORMATS:
        render(build(name, Study([])), kind)


def test_means_over_three_runs_use_students_t_on_logarithms() -> None:
    found = mean_of([Estimate(v) for v in (1.0, 10.0, 100.0)])
    assert found.value == 37  # the logarithms to base 10 are 0, 1, 2: their deviation is 1
    assert found.high / 37 == pytest.approx(10 ** (4.30265 / 3**0.5), rel=1e-4)
    assert found.low == pytest.approx(37**2 / found.high)
    signed = mean_of([Estimate(v) for v in (-1.0, 0.0, 1.0)])
    assert signed.high == pytest.approx(4.30265 / 3**0.5, rel=1e-4)
    two = mean_of([Estimate(1.0, 0.5, 1.5), Estimate(3.0, 2.0, 4.0)])
    assert (two.low, two.high) == (1.25, 2.75)


@pytest.mark.parametrize("width", [60, 120])
def test_a_narrow_screen_shows_every_number(width: int, records: list[Record]) -> None:
    table = build("2", Study(records))
    console = Console(width=width, no_color=True, color_system=None)
    with console.capture() as capture:
        console.print(terminal(table, width))
    shown = " ".join(capture.get().split())
    for row in table.rows:
        for column in table.columns:
            value = row.get(column.name)
            if isinstance(value, Value) and value.estimate is not None:
                assert value.text(column.digits) in shown


def test_plain_text_is_a_grid_without_cuts(records: list[Record]) -> None:
    text = render(build("2", Study(records)), "terminal")
    assert "\u2026" not in text and text.splitlines()[1].startswith("\u250f")
    assert not any(line.endswith(" ") for line in text.splitlines())


@pytest.mark.parametrize(("depths", "fitted"), [((2, 7), False), ((2, 4, 7), True)])
def test_table_6_fits_no_line_through_two_depths(
    tmp_path: Path, depths: tuple[int, ...], fitted: bool
) -> None:
    records = [make_record(arm, depth=d, step_ms=10 + 2 * d) for arm in ("native", "ring") for d in depths]
    rows = frame("6", records)
    rows = rows[rows["hardware"] == "cpu"]
    assert list(rows["slope_ms"].notna()) == [fitted, fitted]
    assert list(rows["slope_drop_percent"].notna()) == [False, fitted]
    assert set(rows["slope_ms_verdict"]) == {"no paper value" if fitted else "3 depths are needed"}
    drawn = draw("fit", Study(records), tmp_path)
    assert (drawn.stem is not None) is fitted
