"""Tables 11 and 12 and their figures from records of the probes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from factory import make_record

from analysis import figures
from analysis.study import Study
from analysis.tables import frame
from analysis.tables.base import INSIDE, OUTSIDE
from harness.records import Record

PAPER = {"model": "qwen3_6_35b", "hardware": "b200", "context_tokens": 1_040_000}


def decision_record(**point: Any) -> Record:
    operating = {
        "window_tokens": 4032, "sink_tokens": 64, "agreeing_steps": 360, "margin_at_flip": 0.5,
        "router_jaccard": 0.6,
    }  # fmt: skip
    probe = {
        **operating, "steps": 400, "margin_mean": 4.0, "control_agreeing_steps": 400,
        "windows": [operating, {"window_tokens": 960, "sink_tokens": 64, "agreeing_steps": 300}],
        "by_position": [{"position": 1, "steps": 100, "agreeing_steps": 98},
                        {"position": 2, "steps": 300, "agreeing_steps": 262}],
        "margin_edges_logits": [0.0, 0.5, 2.0], "margin_counts": [60, 100, 240],
        "margin_counts_at_flip": [30, 8, 2],
    }  # fmt: skip
    return make_record("native", probe="decision", record={"extras": {"decision_probe": probe}}, **point)


def mass_record(**point: Any) -> Record:
    operating = {
        "window_tokens": 4032, "sink_tokens": 64, "mass": 0.78,
        "perturbation": 0.15, "perturbation_joint": 0.14,
        "tail_share": 0.2, "tail_share_joint": 0.19, "tail_keys": 1000, "tail_entropy_nats": 3.4538776,
        "tail_participation_keys": 20.0,
    }  # fmt: skip
    mass = {
        "steps": 90, "window_tokens": 4032, "sink_tokens": 64, "in_window_mass": 0.78, "perturbation": 0.15,
        "tail_share": 0.2, "residual_share": 0.5, "kernel_difference": 0.002, "sink_mass": 0.3,
        "windows": [operating, {**operating, "window_tokens": 960, "mass": 0.6}],
        "distance_mass": [0.2, 0.1, 0.1, 0.3],
    }  # fmt: skip
    return make_record("native", probe="attention_mass", depth=5, record={"extras": {"attention_mass": mass}},
                       **point)  # fmt: skip


def test_decisions_have_a_row_a_window_and_the_papers_word_on_the_first() -> None:
    rows = frame("11", [decision_record(**PAPER)]).iloc[:2]
    assert list(rows["window"]) == ["4032+64", "960+64"]
    assert list(rows["agree_percent"]) == [90, 75]
    assert list(rows["agree_percent_verdict"]) == [INSIDE, "no paper value"]
    assert list(rows["margin_at_flip_verdict"]) == [INSIDE, "-"]
    assert list(rows["router_jaccard"][:1]) == [0.6]
    assert list(rows["control_percent"]) == [100, 100]
    low, high = rows["flip_percent_low"].iloc[0], rows["flip_percent_high"].iloc[0]
    assert low == pytest.approx(100 - rows["agree_percent_high"].iloc[0]) and low < 10 < high


def test_masses_have_a_row_a_window_and_the_papers_word_on_the_first() -> None:
    rows = frame("12", [mass_record(**PAPER)]).iloc[:2]
    assert list(rows["window"]) == ["4032+64", "960+64"]
    assert list(rows["in_window_percent"]) == pytest.approx([78, 60])
    assert list(rows["perturbation_percent_verdict"]) == [INSIDE, "no paper value"]
    assert rows["tail_participation"].iloc[0] == 20
    assert rows["tail_entropy_percent"].iloc[0] == pytest.approx(50), "half of log 1000"
    assert rows["residual_share"].iloc[0] == 0.5 and pd.isna(rows["residual_share"].iloc[1])


def test_another_perturbation_is_outside() -> None:
    record = mass_record(**PAPER)
    record.extras["attention_mass"]["windows"][0]["perturbation"] = 0.9
    assert frame("12", [record])["perturbation_percent_verdict"].iloc[0] == OUTSIDE


@pytest.mark.parametrize(("name", "record"), [("distance", mass_record()), ("decision", decision_record())])
def test_figures_are_drawn(name: str, record: Record, tmp_path: Path) -> None:
    drawn = figures.draw(name, Study([record]), tmp_path)
    assert drawn.stem is not None
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".svg", ".pdf"}
