"""Where files are written: links, streams, folders."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from analysis.files import write_bytes
from harness.errors import ConfigError


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real" / "file")
    for body in (b"new", b"again"):
        write_bytes(link, body)
        assert link.is_symlink() and (tmp_path / "real" / "file").read_bytes() == body
    assert [p.name for p in (tmp_path / "real").iterdir()] == ["file"]


def test_a_device_stays_one(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    write_bytes(tmp_path / "null", b"body")
    write_bytes(Path("/dev/null"), b"body")
    assert Path("/dev/null").is_char_device() and (tmp_path / "null").is_symlink()


def test_a_pipe_is_written_through(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="--out"):
        write_bytes(pipe, b"nobody reads")
    # Open for both, the pipe has no end before the writer comes.
    reader = os.open(pipe, os.O_RDWR)
    writer = threading.Thread(target=write_bytes, args=(pipe, b"x" * 1_000_000))
    writer.start()
    with os.fdopen(reader, "rb") as file:
        assert file.read(1_000_000) == b"x" * 1_000_000
    writer.join()
    assert pipe.is_fifo()


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it is a folder"):
        write_bytes(tmp_path, b"")


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_standard_output_gets_the_body_alone(tmp_path: Path, kind: str) -> None:
    code = (
        "import sys; from pathlib import Path; from analysis.files import write_bytes\n"
        "sys.stdout.write('before '); write_bytes(Path('/dev/stdout'), b'body'); sys.stdout.write(' after')"
    )
    out = tmp_path / "out"
    with out.open("wb") as file:
        target = file if kind == "file" else subprocess.PIPE
        done = subprocess.run([sys.executable, "-c", code], stdout=target, check=True)
    assert (out.read_bytes() if kind == "file" else done.stdout) == b"before body after"


def test_a_backend_of_the_environment_is_not_asked(results: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "MPLBACKEND": "nonsense"}
    for words in (["figure", "fit"], ["report"]):
        out = tmp_path / words[0]
        command = [sys.executable, "-m", "analysis", *words, "--results", str(results), "--out", str(out)]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "") and out.exists()
