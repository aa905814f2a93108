"""A foreign log that contradicts the command line makes no record."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from analysis import foreign
from analysis.cli import main
from analysis.foreign_log import read_foreign
from analysis.foreign_server import server_of, stated_servers
from analysis.validity import judge
from harness.errors import InputError
from harness.records import points_dir, read_all

NATIVE = (
    "'tp_size': 1, 'dtype': 'bfloat16', 'kv_cache_dtype': 'auto', 'device': 'cuda', 'context_length': 9000, "
    "'speculative_algorithm': 'EAGLE', 'speculative_num_steps': 6, 'speculative_eagle_topk': 1, "
    "'speculative_num_draft_tokens': 7, 'speculative_draft_window_size': None, 'other': {'a': 1}"
)
RING = NATIVE.replace(
    "'speculative_draft_window_size': None",
    "'speculative_draft_window_size': 4032, 'speculative_draft_sink_size': 64",
)
MODE = "[2026-11-30 05:00:03] windowed-mtp: mode=ring window=4032 sink=64 rows=4\n"


def log(arguments: str = NATIVE, mode: str = "", tokens: int = 8200) -> str:
    head = f"[2026-11-30 05:00:00] server_args={{{arguments}}}\n" if arguments else ""
    lines = (
        f"[2026-11-30 05:10:{i:02d}] Decode batch, #running-req: 1, #full token: {tokens + 2 * i}, "
        "full token usage: 0.1, accept len: 2.00, accept rate: 0.17, gen throughput (token/s): 2.00, "
        "#queue-req: 0\n"
        for i in range(12)
    )
    return head + mode + "".join(lines)


def imported(folder: Path, text: str, *words: str) -> int:
    (folder / "s.log").write_text(text)
    base = ["--results", str(folder), "--model", "m", "--hardware", "h"]
    given = {"--arm": "native", "--context": "8192", **dict(zip(words[::2], words[1::2], strict=True))}
    return main(["import-log", str(folder / "s.log"), *base, *(w for pair in given.items() for w in pair)])


def test_a_log_that_agrees_is_imported(tmp_path: Path) -> None:
    assert imported(tmp_path, log()) == 0
    assert imported(tmp_path, log(RING, MODE), "--arm", "ring") == 0
    assert imported(tmp_path, log("")) == 0, "a log without its beginning says nothing"
    assert imported(tmp_path, log(f"{NATIVE}").replace("{'tp", "ServerArgs('tp")) == 0
    records, errors = read_all(tmp_path)
    assert not errors and all(judge(record).valid for record in records)


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (log(""), ["--context", "65536"], "held 8,222 tokens at most"),
        (log(), ["--context", "1000"], "from the first step on"),
        (log(), ["--context", "8900", "--depth", "3"], "speculative_num_draft_tokens is 7, not 3"),
        (log(), ["--arm", "dense"], "speculative_algorithm is 'EAGLE', not None"),
        (log(), ["--arm", "ring"], "speculative_draft_window_size is None, not 4032"),
        (log(RING), [], "speculative_draft_window_size is 4032"),
        (log(RING), ["--arm", "ring", "--window", "1024"], "is 4032, not 1024"),
        (log(RING), ["--arm", "ring", "--sink", "4"], "speculative_draft_sink_size is 64, not 4"),
        (log(RING, MODE), ["--arm", "windowed"], "the draft's mode is ring"),
        (log("", MODE), [], "the draft's mode is ring"),
        (log(), ["--tp", "2"], "tp_size is 1, not 2"),
        (log(NATIVE.replace("9000", "4000")), [], "context_length is 4000, below 8192"),
        (log("").replace("] Dec", " TP1] Dec"), [], "has lines of rank TP1, --tp says 1: give --tp 2"),
        (
            log("").replace("] Dec", " DP0] Dec") + log("").replace("] Dec", " DP1] Dec"),
            [],
            "2 data-parallel",
        ),
        (log(), ["--depth", "-3"], "depth"),
    ],
)
def test_a_log_that_contradicts_the_command_line_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: list[str], said: str
) -> None:
    assert imported(tmp_path, text, *words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert "give" in error or words == ["--depth", "-3"]
    assert not points_dir(tmp_path).exists()


def test_the_precision_is_the_logs_own(tmp_path: Path) -> None:
    text = log(NATIVE.replace("'kv_cache_dtype': 'auto'", "'kv_cache_dtype': 'fp8_e4m3'"))
    assert imported(tmp_path, text) == 0
    (record,) = read_all(tmp_path)[0]
    assert (record.point.dtype, record.point.kv_dtype) == ("bfloat16", "fp8_e4m3")


def test_each_piece_belongs_to_the_server_before_it() -> None:
    text = (log() + log(RING, MODE)).encode()
    servers = stated_servers(text)
    second = text.index(b"server_args", 100)
    assert [server.mode for server in servers] == [None, "ring"]
    assert server_of(servers, second - 50).mode is None and server_of(servers, len(text) - 10).mode == "ring"


def test_a_restart_inside_the_piece_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert imported(tmp_path, log() + log(NATIVE.replace("'tp_size': 1", "'tp_size': 4"))) == 2
    error = capsys.readouterr().err
    assert "several server starts" in error and "--from and --to" in error
    later = log().replace(" 05:", " 06:")
    assert imported(tmp_path, log() + later, "--from", "2026-11-30 06:00:00") == 0
    # A start that served nothing is none of the run's.
    assert imported(tmp_path, f"[2026-11-30 04:00:00] server_args={{{RING}}}\n" + log()) == 0


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_log_of_a_windows_shell_is_read(tmp_path: Path, encoding: str) -> None:
    assert imported(tmp_path, log()) == 0
    (tmp_path / "w.log").write_text(log(), encoding=encoding)
    assert read_foreign(tmp_path / "w.log") == read_foreign(tmp_path / "s.log")


def test_a_log_with_gaps_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert imported(tmp_path, log() + "\0" * 4096) == 2
    assert "NUL bytes" in capsys.readouterr().err


def test_no_stream_is_opened_as_a_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match="no regular file"):
            read_foreign(path)


def test_what_was_found_and_assumed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert imported(tmp_path, log("")) == 0
    said = capsys.readouterr()
    assert "step 1000.00 [" in said.out and "12 decode lines" in said.out
    assert "assumed: --depth 7" in said.err
    assert imported(tmp_path, log(NATIVE.replace(": 6", ": 2").replace(": 7", ": 3"))) == 0
    assert capsys.readouterr().err == ""
    assert {record.point.depth for record in read_all(tmp_path)[0]} == {3, 7}


def test_what_a_large_log_holds_is_said_as_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "_LARGE_BYTES", 100)
    assert imported(tmp_path, log()) == 0
    assert capsys.readouterr().err == (
        "reading 0 MiB of log\nfound 1 server starts, 12 decode steps, 1 runs\n"
    )


def test_two_runs_in_one_log_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert imported(tmp_path, log() + log("").replace(" 05:", " 06:")) == 0
    assert "note: " in (said := capsys.readouterr().out) and "perhaps the lines are of several runs" in said
    assert imported(tmp_path, log() + log("").replace(" 05:", " 04:")) == 0
    assert "no measurement: the time goes back by 3,611 s" in capsys.readouterr().out


def test_cached_prompt_tokens_make_an_imported_record_invalid(tmp_path: Path) -> None:
    cached = (
        "[2026-11-30 05:09:00] Prefill batch, #new-seq: 1, #new-token: 192, #cached-token: 8000, "
        "full token usage: 0.1, #running-req: 0, #queue-req: 0\n"
    )
    assert imported(tmp_path, log().replace("[2026-11-30 05:10:00]", cached + "[2026-11-30 05:10:00]")) == 0
    (record,) = read_all(tmp_path)[0]
    assert judge(record).label == "invalid:cache_hit"
