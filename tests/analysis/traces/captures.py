"""Builds small nsys exports: only the tables and columns that a test asks for."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

PROCESS = 100
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"


def tid(thread: int = 1, process: int = PROCESS) -> int:
    """A global thread id."""
    return (process << 24) + thread


def pid(process: int = PROCESS) -> int:
    """A global process id."""
    return process << 24


def export(path: Path, tables: Mapping[str, tuple[str, Iterable[Sequence[Any]]]]) -> Path:
    """An export with these tables: name -> (space-separated columns, rows)."""
    with closing(sqlite3.connect(path)) as connection:
        for name, (columns, rows) in tables.items():
            names = columns.split()
            quoted = ", ".join(f'"{column}"' for column in names)
            connection.execute(f'CREATE TABLE "{name}" ({quoted})')
            marks = ", ".join("?" * len(names))
            connection.executemany(f'INSERT INTO "{name}" VALUES ({marks})', [tuple(r) for r in rows])
        connection.commit()
    return path


def from_sql(path: Path, script: str) -> Path:
    """An export made by a SQL script."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
        connection.commit()
    return path


RANGES = "start end eventType text globalTid"
CALLS = "start end globalTid correlationId"
KERNELS = "start end deviceId correlationId globalPid shortName"


def nvtx(
    *rows: tuple[int, int | None, str], thread: int | None = None, kind: int = 59
) -> tuple[str, list[Any]]:
    """An NVTX table of (start, end, text) rows."""
    return RANGES, [(start, end, kind, text, thread or tid()) for start, end, text in rows]


def calls(*rows: tuple[int, int], thread: int | None = None) -> tuple[str, list[Any]]:
    """A table of API calls from (start, correlation id) rows."""
    return CALLS, [(start, start + 1, thread or tid(), key) for start, key in rows]


def kernels(*rows: tuple[int, int, int, str], device: int = 0) -> tuple[str, list[Any]]:
    """A kernel table of (start, end, correlation id, name) rows."""
    return KERNELS, [(start, end, device, key, pid(), name) for start, end, key, name in rows]
