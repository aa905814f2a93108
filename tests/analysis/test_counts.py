"""Records whose replies, tokens and log lines do not add up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from factory import make_record

from analysis.compare import compare_sets
from analysis.copies import copies
from analysis.export import point_frame
from analysis.load import load
from analysis.study import Cell, Study, pooled, step_ms
from analysis.tables.heading import header
from analysis.validity import judge
from harness.records import InputInfo, Record

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"


def ids(times: float) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        (request,) = record.requests
        kept = int(times * len(request.output_ids))
        request.output_ids = (request.output_ids * 2)[:kept]

    return change


def lines(record: Record, times: int) -> None:
    steps = record.decode_steps
    for name in type(steps).model_fields:
        setattr(steps, name, getattr(steps, name) * times)


def lengths(record: Record, factor: float) -> None:
    steps = record.decode_steps
    steps.accept_length = [a and min(7.0, a * factor) for a in steps.accept_length]


def without_histogram(record: Record) -> None:
    lengths(record, 1.6)
    (request,) = record.requests
    request.verify_steps = request.correct_drafts = request.accept_histogram = None


def prompt(**fields: str) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        assert isinstance(record.input, InputInfo)
        record.input = record.input.model_copy(update=fields)

    return change


def setting(name: str, value: object) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        record.point = record.point.model_copy(update={name: value})

    return change


BROKEN: list[tuple[str, str, Callable[[Record], None]]] = [
    ("native", "token_count_mismatch", ids(0)),
    ("native", "token_count_mismatch", ids(0.1)),
    ("native", "token_count_mismatch", ids(2)),
    ("native", "token_count_mismatch", setting("max_new_tokens", 16)),
    ("dense", "token_count_mismatch", lambda r: setattr(r.requests[0], "completion_tokens", -4)),
    ("native", "request_count", lambda r: r.requests.extend([r.requests[0]] * 3)),
    ("native", "surplus_steps", lambda r: lines(r, 3)),
    ("dense", "surplus_steps", lambda r: lines(r, 2)),
    ("native", "length_mismatch", lambda r: lengths(r, 1.3)),
    ("native", "length_mismatch", without_histogram),
    ("native", "unknown_probe", setting("probe", "nonsense")),
    ("ring", "other_server", lambda r: r.server.engine_report.clear()),
    ("native", "other_prompt", prompt(sha256_ids="none")),
    ("native", "other_prompt", prompt(sha256_ids="0" * 64)),
    ("native", "other_probe", setting("probe", "margins")),
    ("native", "other_probe", setting("probe", "decision")),
    ("native", "other_probe", lambda r: r.extras.update(output_margins=[0.5])),
    ("native", "token_count_mismatch", lambda r: setattr(r.requests[0], "proposed_drafts", 79 * 6)),
    (
        "native",
        "reply_mismatch",
        lambda r: (
            r.requests[0].meta_info.update(e2e_latency=9.0, spec_verify_ct=80)
            or setattr(r.requests[0], "e2e_latency_s", 1.6)
        ),
    ),
    ("native", "other_prompt", prompt(task="vt")),
    ("native", "other_prompt", prompt(sample_id="niah_multiquery_enum-5-0-" + "0" * 16)),
    ("native", "cache_hit", lambda r: setattr(r.prefill_steps, "cached_tokens", [8191])),
]


@pytest.mark.parametrize(("arm", "code", "change"), BROKEN)
def test_what_does_not_add_up_is_no_measurement(
    arm: str, code: str, change: Callable[[Record], None]
) -> None:
    record = make_record(arm)
    change(record)
    found = {reason.code for reason in judge(record).reasons if reason.severity == "invalid"}
    assert code in found


def test_lengths_of_part_of_the_steps_are_only_noted() -> None:
    """A log with gaps, or of a shared prefill, has other steps than the histogram."""
    record = make_record("native")
    steps = record.decode_steps
    order = sorted(range(80), key=lambda i: steps.accept_length[i] or 0)[:40]
    for name in type(steps).model_fields:
        setattr(steps, name, [getattr(steps, name)[i] for i in sorted(order)])
    assert {r.code for r in judge(record).reasons} >= {"length_disagreement", "log_gaps"}
    assert "length_mismatch" not in {r.code for r in judge(record).reasons}


def test_the_reference_records_add_up() -> None:
    new = {code for _, code, _ in BROKEN}
    found = {r.code for record in load(REFERENCE) for r in judge(record).reasons if r.severity == "invalid"}
    assert not found & new


def copied(times: int, **point: object) -> list[Record]:
    record = make_record("native")
    points = [record.point.model_copy(update={"repeat": i, **point}) for i in range(times)]
    return [record.model_copy(update={"point": p, "key": p.key}) for p in points]


def test_copies_of_a_run_count_once_and_are_named() -> None:
    records = copied(8)
    study = Study(records)
    found = pooled(study.cells, step_ms).estimate
    alone = pooled([Cell(records[0])], step_ms).estimate
    assert found is not None and found == alone and found.high > found.low
    assert [cell.verdict.label for cell in study.cells] == ["ok", *["invalid:copy"] * 7]
    assert records[0].key in study.cells[3].verdict.text
    assert f"Of {records[0].key} 7 copies are left out" in " ".join(header(study))
    assert list(point_frame(records)["verdict"]) == ["ok", *["invalid:copy"] * 7]
    assert compare_sets(records, records, "step_ms").effects[0].pairs == 1


def test_runs_of_other_points_are_no_copies() -> None:
    assert copies([*copied(1), *copied(1, dtype="float32")]) == {}
    assert copies(load(REFERENCE)) == {}
