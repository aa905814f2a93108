"""A foreign log that contradicts the command line makes no record."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.cli import main
from analysis.foreign_server import server_of, stated_servers
from analysis.validity import judge
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
    ],
)
def test_a_log_that_contradicts_the_command_line_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: list[str], said: str
) -> None:
    assert imported(tmp_path, text, *words) == 2
    error = capsys.readouterr().err
    assert said in error and "give" in error and error.count("\n") == 1
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
