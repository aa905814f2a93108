"""What a probe left during a run: the run's own lines, or a plain reason."""

import json

import pytest

from harness.errors import RecordError
from harness.measure import probes


def write(path, times, end="\n"):
    path.write_text("".join(json.dumps({"monotonic_ns": t}) + "\n" for t in times).rstrip("\n") + end)


def test_only_lines_of_the_run_are_read(tmp_path):
    path = tmp_path / "trace.rank0.jsonl"
    write(path, [5, 10, 15, 20, 25])
    assert [line["monotonic_ns"] for line in probes.read_lines(path, 10, 20)] == [10, 15, 20]


def test_a_line_still_being_written_is_left_for_later(tmp_path):
    path = tmp_path / "trace.rank0.jsonl"
    write(path, [10, 15], end='\n{"monoto')
    assert [line["monotonic_ns"] for line in probes.read_lines(path, 0, 99)] == [10, 15]


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"time": 3}', '{"monotonic_ns": null}'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "trace.rank0.jsonl"
    path.write_text('{"monotonic_ns": 3}\n' + line + "\n")
    with pytest.raises(RecordError, match=r"rank0\.jsonl:2"):
        probes.read_lines(path, 0, 99)


def test_a_probe_that_left_nothing_is_no_measurement(tmp_path, monkeypatch):
    monkeypatch.setattr(probes, "_SETTLE_S", 0.0)
    with pytest.raises(RecordError, match="trace probe left nothing"):
        probes.collect("trace", tmp_path, 0, 99, None)
