"""A run of another setting changes no number of the rows that do not name that setting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from factory import make_record

from analysis.equivalence import typical_margins
from analysis.figures import make
from analysis.figures.base import close
from analysis.study import Cell, Study
from analysis.tables import TABLES, build, frame
from harness.records import Outcome, Pool, Record, ServerInfo

# Each is a setting that most runs of `usual` do not have.
STRANGERS: dict[str, dict[str, Any]] = {
    "window": {"window_tokens": 508}, "sink": {"sink_tokens": 8}, "batch": {"batch": 3}, "tp": {"tp": 2},
    "dtype": {"dtype": "float32"}, "kv_dtype": {"kv_dtype": "fp8_e4m3"}, "length": {"max_new_tokens": 64},
    "ignore_eos": {"ignore_eos": True}, "backend": {"draft_backend": "triton"},
    "pruned": {"prune_draft_prefill": True}, "penalty": {"repetition_penalty": 1.0},
    "temperature": {"temperature": 1.0}, "budget": {"kv_budget_mib": 384},
    "shared_prefill": {"shared_prefill": True}, "task_params": {"task_params": {"keys": 4}},
    "task": {"task": "vt"}, "depth": {"depth": 5},
}  # fmt: skip
_INPUTS = {"task", "task_params"}
LOOKED_OVER = {"lossless": _INPUTS, "divergence": _INPUTS, "lossless_inputs": {"task_params"},
               "spread": {"task"}, "memory": {"window", "sink", "depth"}, "3": {"depth"}, "5": {"depth"},
               "6": {"depth"}}  # fmt: skip
OF_WINDOW_ARMS = {"window", "sink", "pruned"}
OF_SPECULATION = {"depth", "backend"}


def extras(probe: str | None, arm: str, scale: float) -> dict[str, Any]:
    """What a probe leaves, its times and shares `scale` times as large."""
    if probe == "trace":
        phases = {
            "source": "engine", "iterations": 18, "verify_base_ms": 10.0, "verify_overhead_ms": 1.0,
            "draft_ms": 4.0 * scale, "draft_extend_ms": 1.0 * scale, "unattributed_ms": 0.5,
            "iteration_ms": 11.5 + 4.0 * scale,
        }  # fmt: skip
        kernel = {"name": "attend", "kind": "attention", "phase": "draft", "calls_per_iteration": 1,
                  "us_per_iteration": 10 * scale}  # fmt: skip
        trace = {"source": "torch", "iterations": 18, "busy_us_all": 100.0,
                 "classes_us": {"attention": 10 * scale}}  # fmt: skip
        return {"phases": phases, "kernels": [kernel], "kernel_trace": trace}
    if probe == "decision":
        return {"decision_probe": {"steps": 400, "agreeing_steps": int(200 / scale), "margin_mean": scale}}
    if probe == "attention_mass":
        return {"attention_mass": {"steps": 90, "in_window_mass": 0.5 / scale, "perturbation": 0.1,
                                   "tail_share": 0.2}}  # fmt: skip
    if probe == "draws":
        rng = np.random.Generator(np.random.PCG64([len(arm), int(scale)]))
        counts = [rng.multinomial(200, [0.5, 0.3, 0.2] if scale == 1 else [1, 0, 0]) for _ in range(3)]
        positions = [{str(token): int(n) for token, n in enumerate(found) if n} for found in counts]
        return {"draws": {"requests": 200, "temperature": 1.0, "verify_steps": 100, "accepted_drafts": 100,
                          "positions": positions}}  # fmt: skip
    return {}


def made(arm: str, probe: str | None, scale: float = 1.0, **point: Any) -> Record:
    steps = {"dense": 12.0, "native": 30.0}.get(arm, 20.0) * scale
    alpha = 1.0 if scale == 1 else 0.5
    if arm != "dense" and "depth" not in point:
        point["depth"] = 7
    found = extras(probe, arm, scale)
    return make_record(arm, step_ms=steps, alpha=alpha, probe=probe, record={"extras": found}, **point)


@pytest.fixture(scope="module")
def usual() -> list[Record]:
    arms = ("dense", "native", "ring")
    records = [made(arm, None, seed=seed) for arm in arms for seed in range(3)]
    records += [made(arm, None, context_tokens=32768) for arm in arms]
    records += [made(arm, None, batch=batch) for arm in arms for batch in (2, 4)]
    records += [made(arm, "trace") for arm in ("native", "ring")]
    records += [made("native", "decision"), made("native", "attention_mass")]
    return records + [made(arm, "draws", temperature=1.0) for arm in arms]


def rows_of(name: str, records: list[Record]) -> set[tuple[str, ...]]:
    found = frame(name, records)
    shown: pd.DataFrame = found[[c for c in found.columns if "paper" not in c]]
    return {tuple(map(str, row)) for row in shown.itertuples(index=False)}


def strangers(setting: str) -> list[Record]:
    """Runs of one other setting, ten times as slow, of every arm that can have it, plain and probed."""
    point = STRANGERS[setting]
    arms = ["ring"] if setting in OF_WINDOW_ARMS else ["native", "ring"]
    arms += [] if setting in OF_WINDOW_ARMS | OF_SPECULATION else ["dense"]
    out = [made(arm, None, 10.0, **point) for arm in arms]
    out += [made(arm, "trace", 10.0, **point) for arm in arms if arm != "dense"]
    if "native" in arms:
        out += [made("native", probe, 10.0, **point) for probe in ("decision", "attention_mass")]
    return out + [made(arm, "draws", 10.0, **({"temperature": 1.0} | point)) for arm in arms]


@pytest.mark.parametrize("setting", STRANGERS)
@pytest.mark.parametrize("name", TABLES)
def test_rows_stay(name: str, setting: str, usual: list[Record]) -> None:
    if setting in LOOKED_OVER.get(name, ()):
        pytest.skip("its rows are over this setting")
    alone, beside = rows_of(name, usual), rows_of(name, usual + strangers(setting))
    assert alone <= beside, alone - beside


def test_an_invalid_trace_or_probe_shows_why_and_no_number(usual: list[Record]) -> None:
    records = [
        record.model_copy(update={"outcome": Outcome.INVALID, "reason": "prompt was cached"})
        if record.point.probe else record
        for record in usual
    ]  # fmt: skip
    for name, column in (("7", "draft_ms"), ("8", "native_ms"), ("11", "agree_percent"),
                         ("12", "in_window_percent")):  # fmt: skip
        table = build(name, Study(records))
        (row, *_) = (row for row in table.rows if row["hardware"] == "cpu")
        assert row[column].text() == "invalid" or "cached" in row[column].text(), (name, row[column])  # type: ignore[union-attr]
    bandwidth = frame("bandwidth", records)
    assert "trace" not in set(bandwidth["source"])


def test_a_trace_of_another_setting_alone_names_it() -> None:
    records = [made("ring", None, seed=seed) for seed in range(3)]
    records.append(made("ring", "trace", window_tokens=508))
    rows = frame("7", records).query("hardware == 'cpu' and draft_ms == draft_ms")
    assert rows["arm"].to_list() == ["ring (W = 508)"]


def test_native_and_ring_kernels_are_of_one_context_and_input() -> None:
    records = [made(arm, "trace") for arm in ("native", "ring")]
    records.append(made("native", "trace", 10.0, context_tokens=32768))
    row = frame("8", records).iloc[0]
    assert (row["context_tokens"], row["native_ms"], row["ring_ms"]) == (8192, 0.01, 0.01)


def test_a_looping_output_is_marked_in_table_9_too() -> None:
    loop = made("native", None)
    loop.requests[0].output_ids = [1, 2, 3, 4] * (loop.requests[0].completion_tokens // 4 + 1)
    loop.requests[0].output_ids = loop.requests[0].output_ids[: loop.requests[0].completion_tokens]
    row = frame("9", [loop]).query("arm == 'native' and hardware == 'cpu'").iloc[0]
    assert "output loops" in row["accept_length_flag"] and "output loops" in row["alpha_1_flag"]


def test_a_batch_that_left_no_step_did_not_run() -> None:
    silent = made("ring", None, batch=12)
    silent.decode_steps.running_requests = [3] * len(silent.decode_steps)
    failed = make_record("ring", batch=6, outcome=Outcome.DOES_NOT_FIT, reason="too large")
    records = [made("ring", None, batch=batch) for batch in (1, 2)] + [silent, failed]
    row = frame("batches", records).query("arm == 'ring'").iloc[0]
    assert (row["ran"], row["failed"]) == ("2", 6)


def test_a_smaller_batch_that_failed_is_named() -> None:
    failed = make_record("ring", batch=2, outcome=Outcome.DOES_NOT_FIT, reason="too large")
    records = [made("ring", None, batch=batch) for batch in (1, 4)] + [failed]
    assert "2 failed too" in frame("batches", records).query("arm == 'ring'").iloc[0]["why"]


@pytest.mark.parametrize("setting", ["window", "penalty", "backend", "budget"])
@pytest.mark.parametrize("name", ["decomposition", "2", "3", "4", "step", "context"])
def test_figures_draw_the_operating_setting_alone(name: str, setting: str, usual: list[Record]) -> None:
    alone, beside = (make(name, Study(records)) for records in (usual, usual + strangers(setting)))
    assert alone is not None and beside is not None
    close(alone)
    close(beside)
    for before, after in zip(alone.axes, beside.axes, strict=True):
        lines = [[tuple(map(float, line.get_ydata())) for line in axis.lines] for axis in (before, after)]
        bars = [[patch.get_height() for patch in axis.patches] for axis in (before, after)]  # type: ignore[attr-defined]
        assert all(line in lines[1] for line in lines[0] if line) and bars[0] == bars[1]


def test_records_of_another_server_give_no_bytes_audit_or_margin() -> None:
    shape = {"mtp_attention_layers": 1, "kv_heads": 4, "head_dim": 64}
    sound, odd = made("native", None), made("native", None, seed=1)
    for record, size in ((sound, 2), (odd, 800)):
        pools = [Pool(role="draft", tokens=10_000, bytes=size * 10_240_000)]
        record.server = ServerInfo(architecture=shape, pools=pools)
        record.extras = {"output_margins": [float(size)] * record.requests[0].completion_tokens}
    odd.server.arguments = {"speculative_num_draft_tokens": 3, "speculative_algorithm": "EAGLE"}
    odd.extras["penalty"] = {"state": "honoured", "repetition_penalty": 1.15, "judged": 9, "penalised": 9}
    assert not Cell(odd).verdict.of_point
    alone, beside = ({name: rows_of(name, records) for name in ("bandwidth", "penalty")}
                     for records in ([sound], [sound, odd]))  # fmt: skip
    assert alone == beside
    assert set(typical_margins(Study([sound, odd]).groups[0]).values()) <= {2.0}


def test_a_frontier_shows_windows_that_only_batches_have() -> None:
    records = [made(arm, None, batch=batch) for arm in ("native", "ring") for batch in (2, 4)]
    rows = frame("pareto", records)
    assert sorted(zip(rows["arm"], rows["batch"], strict=True)) == [
        ("native", 2), ("native", 4), ("ring", 2), ("ring", 4),
    ]  # fmt: skip
    records.append(made("ring", None, window_tokens=1020))
    rows = frame("pareto", records).query("arm == 'ring'").set_index("batch")
    assert list(rows.index) == [1, 2, 4]
    assert rows.loc[2, "user_tokens_per_s_flag"] == "W = 252" and rows.loc[2, "frontier"] == ""
