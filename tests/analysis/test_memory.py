"""Pools and batches: shares with their rounding, what a ring gives back, the largest batch of a sweep."""

from __future__ import annotations

from typing import Any

import pytest
from factory import make_record

from analysis.study import Cell, Study
from analysis.tables import frame
from analysis.tables.memory import architecture_share, draft_share, largest_batches
from harness.records import Outcome, Pool, Record, ServerInfo

MIB = 1 << 20
TINY = {"full_attention_layers": 2, "mtp_attention_layers": 1}


def server(arm: str, report: dict[str, str] | None = None, target: int = 256, draft: int = 128) -> ServerInfo:
    pools = [Pool(role="target", tokens=131_072, bytes=target * MIB, dtype="bfloat16")]
    if arm != "dense":
        pools.append(Pool(role="draft", tokens=131_072, bytes=draft * MIB, dtype="bfloat16"))
    return ServerInfo(
        pools=pools, architecture=TINY, max_running_requests=6, arguments={"max_total_tokens": 131_072},
        engine_report={"mode": arm, **(report or {})} if arm == "ring" else {},
    )  # fmt: skip


def made(arm: str, batch: int = 1, **more: Any) -> Record:
    record = more.pop("record", {})
    return make_record(arm, batch=batch, kv_budget_mib=384, record={"server": server(arm), **record}, **more)


def test_share_and_its_rounding() -> None:
    share = draft_share(Cell(made("native"))).estimate
    assert share is not None
    assert share.value == pytest.approx(100 / 3)
    assert share.low == pytest.approx(100 * 118 / (118 + 266))
    assert share.high == pytest.approx(100 * 138 / (138 + 246))


def test_a_pool_known_exactly_has_no_rounding() -> None:
    exact = server("ring", {"draft_pool_bytes": str(2 * MIB)}, target=380, draft=2)
    share = draft_share(Cell(made("ring", record={"server": exact}))).estimate
    assert share is not None
    assert share.low == pytest.approx(100 * 2 / (2 + 390)) and share.high == pytest.approx(
        100 * 2 / (2 + 370)
    )


def test_memory_table() -> None:
    report = {
        "target_tokens": "195804",
        "target_tokens_without_ring": "131071",
        "draft_pool_bytes": "1616896",
    }
    ring = server("ring", report, target=380, draft=2)
    rows = frame("memory", [made("dense"), made("native"), made("ring", record={"server": ring})])
    rows = rows[rows["hardware"] == "cpu"].set_index("arm")
    assert set(rows["budget"]) == {"384 MiB"}
    assert rows["architecture_percent"].to_list() == pytest.approx([100 / 3] * 3), "F from the record"
    assert rows.loc["dense", "draft_percent_verdict"] == "no draft"
    assert rows.loc["ring", "tokens_back"] == 195_804 - 131_071
    assert rows.loc["ring", "tokens_back_percent"] == pytest.approx(49.4, abs=0.1)
    assert rows.loc["native", "tokens_back_percent_verdict"] == "-"


def test_a_memory_row_says_which_points_its_server_served() -> None:
    records = [made(arm, context_tokens=s) for arm in ("native", "ring") for s in (8192, 2048)]
    rows = frame("memory", [*records, made("native", depth=3)])
    rows = rows[rows["hardware"] == "cpu"].set_index("arm")
    assert list(rows["context_tokens"]) == ["2,048 to 8,192"] * 2
    assert (rows.loc["native", "depth"], rows.loc["ring", "depth"]) == ("3 to 7", "7")
    assert (rows.loc["native", "window"], rows.loc["ring", "window"]) == ("", "252 + 4")


def sweep(arm: str, fits: int, tried: int = 6, **more: Any) -> list[Record]:
    return [
        made(arm, batch)
        if batch <= fits
        else made(
            arm, batch, outcome=Outcome.DOES_NOT_FIT, reason=f"does not fit: batch {batch}; buy more", **more
        )
        for batch in range(1, tried + 1)
    ]


def test_largest_batch() -> None:
    rows = frame("batches", sweep("native", 3) + sweep("ring", 5) + sweep("dense", 4, tried=4)).set_index(
        "arm"
    )
    assert rows.loc["native", "ran"] == "3" and rows.loc["native", "failed"] == 4
    assert rows.loc["native", "why"] == "does not fit: batch 4"
    assert rows.loc["ring", "more"] == "+2"
    assert rows.loc["dense", "ran"] == "at least 4" and rows.loc["dense", "more"] == "at least +1"


def test_more_than_native_needs_natives_limit_at_that_depth() -> None:
    deeper = [made("native", batch, depth=9) for batch in range(1, 7)]
    rows = frame("batches", sweep("native", 3) + deeper + sweep("ring", 5) + sweep("dense", 5))
    more = dict(zip(zip(rows["arm"], rows["depth"], strict=True), rows["more"], strict=True))
    assert more["ring", 7] == "+2"
    assert more["dense", 1] == "", "at depth 9 native's limit was not met"
    assert more["native", 7] == more["native", 9] == ""


def test_a_retracted_or_waiting_batch_did_not_fit() -> None:
    records = sweep("native", 4, tried=4)
    records[2].requests[0].retractions = 2
    records[3].decode_steps.running_requests = [3] * len(records[3].decode_steps)
    (found,) = largest_batches(Study(records).groups[0])
    assert (found.ran, found.failed) == (2, 3)
    assert "retracted" in found.why


def test_other_failures_say_nothing_of_memory() -> None:
    records = sweep("native", 3, tried=3)
    records.append(made("native", 4, outcome=Outcome.SERVER_DIED, reason="power cut"))
    (found,) = largest_batches(Study(records).groups[0])
    assert (found.ran, found.failed) == (3, None)


def test_runs_invalid_for_another_reason_are_no_result() -> None:
    bad = [made("native", batch, outcome=Outcome.INVALID, reason="cut") for batch in (2, 3)]
    full = [made("native", 4, outcome=Outcome.DOES_NOT_FIT, reason="does not fit")]
    row = frame("batches", [*bad, *full, *sweep("ring", 5)]).set_index("arm")
    assert row.loc["native", "ran"] == "no valid run" and row.loc["ring", "more"] == ""


def test_one_batch_size_is_no_sweep() -> None:
    assert largest_batches(Study([made("native"), made("ring")]).groups[0]) == []


def test_an_architecture_without_numbers_is_unknown() -> None:
    odd = ServerInfo(architecture={"full_attention_layers": "two"})
    assert architecture_share(odd, None).verdict == "F unknown"
