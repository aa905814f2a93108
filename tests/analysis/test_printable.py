"""Nothing that a server or a record says is obeyed by a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from factory import make_record

from analysis.cli import main
from analysis.summary import summary_lines
from harness.printable import printable
from harness.records import Outcome, write_record

EVIL = "gone\x1b[2J\x1b]0;title\x07\nsecond \u202eline\r\x9b31m\x00"


def obeyed(text: str) -> set[str]:
    return {c for c in text.replace("\n", "") if not c.isprintable()}


def test_control_characters_become_escapes() -> None:
    assert printable(EVIL) == (r"gone\x1b[2J\x1b]0;title\x07\nsecond \u202eline\r\x9b31m\x00")
    assert printable("5\u202f000 \u00b5s\u00a0\u2264 \U0001f642") == "5 000 \u00b5s \u2264 \U0001f642"
    assert printable("\ud800") == r"\ud800"


def test_no_command_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        make_record("native", record={"environment": {"cpu": EVIL}}),
        make_record("ring", record={"environment": {"cpu": "other"}}),
        make_record("dense", outcome=Outcome.SERVER_DIED, reason=EVIL),
        make_record("native", seed=1, record={"samples": {"throttle_reasons": [EVIL]}}),
        make_record("windowed"),
    ]
    records[-1].server.engine_report = {"mode": EVIL}
    assert not obeyed("\n".join(summary_lines(records)))
    assert len(summary_lines(records)) == len("\n".join(summary_lines(records)).split("\n"))
    for record in records:
        write_record(tmp_path, record)
    where = ["--results", str(tmp_path)]
    assert main(["check", "--all", *where]) == 1
    assert capsys.readouterr().out.count("\n") == len(records) + 1
    for command in (["check"], *(["table", "2", "--format", f] for f in ("terminal", "markdown", "csv"))):
        main([*command, *where])
        said = capsys.readouterr()
        assert "title" in said.out or command == ["check"]
        assert not obeyed(said.out) and not obeyed(said.err)


def test_check_lists_what_is_not_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noted = make_record("dense", steps=12)
    write_record(tmp_path, noted)
    assert main(["check", "--results", str(tmp_path)]) == 0
    assert noted.key not in capsys.readouterr().out
    assert main(["check", "--all", "--results", str(tmp_path)]) == 0
    assert "only 13 tokens long" in capsys.readouterr().out
