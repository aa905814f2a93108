"""A server's log file, which grows while it is read and may go at any time."""

from __future__ import annotations

from pathlib import Path


def read_from(path: Path, mark: int) -> bytes:
    """The raw log from byte `mark` on; empty where there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(mark)
            return file.read()
    except FileNotFoundError:
        return b""
