"""A buffered file of JSON lines that never breaks the server it runs in."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from pathlib import Path
from typing import Any

import orjson

logger = logging.getLogger("windowed-mtp")

_ROWS = 256
_IDLE_S = 0.5


class StepWriter:
    """Appends a JSON line a dict. They reach the file after 256 of them, half a second of rest, or at exit.

    A write that fails is logged once and ends the recording: the lines are a by-product, serving goes on.

    Args:
        path: the file; its folder is made at the first flush.
        rows: lines after which they are written at once.
        idle_s: seconds without a new line after which the rest is written.
    """

    def __init__(self, path: Path, rows: int = _ROWS, idle_s: float = _IDLE_S) -> None:
        self.path = path
        self.broken = False
        self._rows = rows
        self._idle_s = idle_s
        self._pending: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._last_ns = time.monotonic_ns()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        atexit.register(self.flush)

    def write(self, line: dict[str, Any]) -> None:
        """Keep one line for the file; values must be plain or numpy."""
        if self.broken:
            return
        with self._lock:
            self._pending.append(line)
            full = len(self._pending) >= self._rows
        self._last_ns = time.monotonic_ns()
        if full:
            self.flush()
        else:
            self._wake_flusher()

    def flush(self) -> None:
        """Write what is pending."""
        with self._lock:
            lines, self._pending = self._pending, []
            if not lines or self.broken:
                return
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("ab") as file:
                    file.write(b"".join(map(_encoded, lines)))
            except (OSError, TypeError) as error:
                self.broken = True
                logger.warning("windowed-mtp: the probe stops recording, %s: %s", self.path, error)

    def _wake_flusher(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._flush_when_idle, name="probe-writer", daemon=True)
            self._thread.start()
        if not self._wake.is_set():
            self._wake.set()

    def _flush_when_idle(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            rest_s = self._idle_s
            while rest_s > 0:
                time.sleep(rest_s)
                rest_s = self._idle_s - (time.monotonic_ns() - self._last_ns) / 1e9
            self.flush()


def _encoded(line: dict[str, Any]) -> bytes:
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
