"""What is no file is refused before it is opened: reading a pipe would wait forever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from analysis.load import load
from analysis.traces import read_trace
from generators.chat import read_config
from generators.documents import expand, read_text
from generators.plain import published
from generators.task import Context
from generators.verify import verify
from harness.errors import ConfigError, HarnessError
from harness.records import LOG_FILE, RECORD_FILE, points_dir, read_log, read_record
from harness.regular import read_regular


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe.txt")
    return tmp_path / "pipe.txt"


def test_pipes_and_devices_are_no_files(pipe: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (pipe, Path("/dev/zero"), tmp_path / "link"):
        with pytest.raises(OSError, match="save its contents to a file"):
            read_regular(path)
    (tmp_path / "file").write_bytes(b"body")
    (tmp_path / "link2").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "link2") == b"body"


@pytest.mark.parametrize(
    "read",
    [read_text, read_trace, verify, lambda path: published(cast(Context, None), path=str(path))],
)
def test_readers_refuse_a_pipe(pipe: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(pipe.with_name("pipe.txt.manifest.json"))
    with pytest.raises(HarnessError):
        read(pipe)


def test_a_record_that_is_a_pipe_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = points_dir(tmp_path) / "0123456789abcdef"
    place.mkdir(parents=True)
    for name in (RECORD_FILE, LOG_FILE):
        os.mkfifo(place / name)
    for reader in (read_record, read_log):
        with pytest.raises(HarnessError, match="pipe or a device"):
            reader(place)
    with pytest.raises(ConfigError):
        load(tmp_path)
    assert "pipe or a device" in capsys.readouterr().err


def test_a_tokenizers_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer_config.json")
    assert read_config(tmp_path) == {}
    assert expand([str(tmp_path)], ".json")
