"""A server's log file, which grows while it is read and may go at any time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness import schedlog

Listener = Callable[[schedlog.Event], None]


def read_from(path: Path, mark: int) -> bytes:
    """The raw log from byte `mark` on; empty where there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(mark)
            return file.read()
    except FileNotFoundError:
        return b""


def events_of(
    chunk: bytes, follower: schedlog.LogFollower, listener: Listener | None
) -> list[schedlog.Event]:
    """The events of the log's next bytes; each also goes to the listener."""
    events = follower.feed(chunk)
    if listener is not None:
        for event in events:
            listener(event)
    return events
