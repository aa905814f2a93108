"""Tables 7 and 8 from records that carry phases, kernels and the capture they come from."""

from __future__ import annotations

from typing import Any

import pytest
from factory import make_record

from analysis.study import Study
from analysis.tables import build, frame


def phases(source: str, draft_ms: float, **more: Any) -> dict[str, Any]:
    return {
        "source": source, "iterations": 18, "verify_base_ms": 10.0, "verify_overhead_ms": 1.0,
        "draft_ms": draft_ms, "unattributed_ms": 0.5, "iteration_ms": 11.5 + draft_ms, **more,
    }  # fmt: skip


def kernel(name: str, us: float, phase: str = "draft", kind: str = "index build") -> dict[str, Any]:
    return {"name": name, "kind": kind, "phase": phase, "calls_per_iteration": 1, "us_per_iteration": us}


def traced(arm: str, **extras: Any) -> Any:
    return make_record(arm, probe="trace", record={"extras": {"phases": phases("engine", 3.0)} | extras})


def test_phases_stand_by_arm_and_by_what_measured_them() -> None:
    records = [
        traced("native", phases=phases("engine", 9.0, draft_index_ms=4.0),
               profiled_phases=phases("nsys", 9.4)),
        traced("ring", phases=phases("engine", 3.0)),
    ]  # fmt: skip
    table = frame("7", records).query("hardware == 'cpu'")
    assert list(zip(table["arm"], table["source"], strict=True)) == [
        ("native", "engine"), ("native", "nsys"), ("ring", "engine"),
    ]  # fmt: skip
    parts = table[["verify_base_ms", "verify_overhead_ms", "draft_ms", "unattributed_ms"]].sum(axis=1)
    assert parts.to_list() == pytest.approx(table["iteration_ms"].to_list())
    assert table["overhead_percent"].to_list() == pytest.approx([100, 104, 40])


def test_kernels_by_class_and_by_name_with_what_the_arm_does_not_run() -> None:
    trace = {"source": "nsys", "iterations": 18, "busy_us_all": 1000.0, "unattributed_us": 25.0,
             "attribution": "by launch"}  # fmt: skip
    native = traced(
        "native",
        kernels=[kernel("build", 900.5), kernel("attend", 50, kind="attention decode"),
                 kernel("attend", 20, "draft_extend", "attention extend"), kernel("gemm", 5000, "verify")],
        kernel_trace=trace | {"classes_us": {"index build": 900.5, "attention decode": 50.0},
                              "warnings": ["export schema 9 is new"]},
    )  # fmt: skip
    ring = traced("ring", kernels=[kernel("attend", 7, kind="attention decode")],
                  kernel_trace=trace | {"classes_us": {"attention decode": 7.0}})  # fmt: skip
    table = frame("8", [native, ring]).query("hardware == 'cpu'")
    assert table[["kind", "kernel", "phase"]].to_numpy().tolist() == [
        ["index build", "all of the class", "draft, all"],
        ["attention decode", "all of the class", "draft, all"],
        ["index build", "build", "draft"],
        ["attention decode", "attend", "draft"],
        ["attention extend", "attend", "draft_extend"],
    ]
    assert table["native_ms"].to_list() == [0.9005, 0.05, 0.9005, 0.05, 0.02]
    assert table["ring_ms_verdict"].to_list()[2] == "-"
    header = "\n".join(build("8", Study([native, ring])).header)
    assert "2.5 % of the busy time in no part" in header
    assert "export schema 9 is new" in header


def test_a_profile_that_failed_says_why() -> None:
    record = traced("native", phases=phases("engine", 9.0),
                    kernel_trace={"source": "nsys", "problem": "nsys did not export"})  # fmt: skip
    row = frame("8", [record]).iloc[0]
    assert "nsys did not export" in row["native_ms"]
