"""Lines of a probe reach their file, and a full disk does not reach the server."""

import json
import logging
import time

from harness.engine.probes.writer import StepWriter


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_many_lines_are_written_at_once_and_the_rest_when_idle(tmp_path):
    path = tmp_path / "made" / "trace.jsonl"
    writer = StepWriter(path, rows=4, idle_s=0.2)
    for number in range(4):
        writer.write({"n": number})
    assert [line["n"] for line in lines_of(path)] == [0, 1, 2, 3]
    writer.write({"n": 4})
    deadline = time.monotonic() + 20
    while len(lines_of(path)) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [line["n"] for line in lines_of(path)] == [0, 1, 2, 3, 4]


def test_a_failed_write_is_logged_once_and_ends_the_recording(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    writer = StepWriter(tmp_path / "file" / "trace.jsonl", rows=1)
    with caplog.at_level(logging.WARNING, logger="windowed-mtp"):
        for number in range(3):
            writer.write({"n": number})
    assert writer.broken
    assert len(caplog.records) == 1


def test_what_cannot_be_a_line_does_not_raise(tmp_path):
    writer = StepWriter(tmp_path / "trace.jsonl", rows=1)
    writer.write({"n": object()})
    assert writer.broken
