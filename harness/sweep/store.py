"""What a results directory already holds: finished points, settled failures, traces of a killed run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from harness import setaside
from harness.errors import ConfigError, RecordError
from harness.points import Point
from harness.records import (
    RECORD_FILE,
    SCHEMA_VERSION,
    Outcome,
    Record,
    judged,
    points_dir,
    read_anywhere,
    read_record,
)
from harness.server.spec import ServerSpec
from harness.sweep import unkeyed
from harness.sweep.locks import PointLocks

RETRY = ("none", "failed", "all")
# Failures that measuring again cannot change unless the server gets more memory: they are results.
MEMORY_OUTCOMES = frozenset(
    {Outcome.DOES_NOT_FIT, Outcome.OUT_OF_MEMORY_AT_START, Outcome.OUT_OF_MEMORY_AT_RUN}
)
_KEY = re.compile(r"[0-9a-f]{16}")
# The extras key of each probe whose windows are no part of its point.
_PROBED = {"decision": "decision_probe", "attention_mass": "attention_mass"}
SETTLED = MEMORY_OUTCOMES | {Outcome.OK, Outcome.NO_DRAFT_WEIGHTS}


def stored(point: Point, results: Path) -> Record | None:
    """The readable record of a point, whatever its outcome; None for none or a damaged one."""
    directory = points_dir(results) / point.key
    if not directory.exists():
        return None
    try:
        return read_record(directory)
    except RecordError:
        return None


def of_another_release(point: Point, results: Path) -> str:
    """Why a point's record must not be replaced: another release reads it. Empty for any other record."""
    path = points_dir(results) / point.key / RECORD_FILE
    try:
        raw = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return ""
    version = raw.get("schema_version", SCHEMA_VERSION) if isinstance(raw, dict) else SCHEMA_VERSION
    if version == SCHEMA_VERSION:
        return ""
    return (
        f"{path} has schema version {version}, this program writes {SCHEMA_VERSION}: it is kept; use "
        "the release that wrote it, or another results="
    )


def unreadable(point: Point, results: Path) -> str:
    """Why a point's record cannot be read; empty where it can, or where there is none."""
    directory = points_dir(results) / point.key
    try:
        if os.path.lexists(directory):
            read_record(directory)
    except RecordError as error:
        return str(error).split(": remove it")[0]
    return ""


def mark(point: Point, results: Path) -> str:
    """What tells a point's state from any later one, whatever the clock says; empty where nothing is."""
    try:
        body = (points_dir(results) / point.key / RECORD_FILE).read_bytes()
    except OSError:
        body = b""
    digest = hashlib.sha256(body).hexdigest()[:16] if body else ""
    aside = len(setaside.entries(results, point.key))
    return f"{digest}+{aside}" if aside else digest


def failed_attempt(point: Point, results: Path, before: str) -> Record | None:
    """The failure that was set aside for a measurement since a mark was made; None for none."""
    _, _, aside = before.partition("+")
    for path in reversed(setaside.entries(results, point.key)[int(aside or 0) :]):
        with contextlib.suppress(RecordError):
            record = read_anywhere(path)
            if record.outcome is not Outcome.OK:
                return record
    return None


def finished(point: Point, results: Path, retry: str, spec: ServerSpec | None = None) -> Record | None:
    """The stored record of a point that need not be measured again, else None.

    Args:
        retry: `none` keeps every record, `failed` measures failures again that can end otherwise, `all`
            measures everything again.
        spec: the server that would run it; with other memory settings than the stored failure had, an
            out-of-memory point is measured again.

    Raises:
        ConfigError: an unknown value of retry.
    """
    check_retry(retry)
    record = None if retry == "all" else stored(point, results)
    if record is None or retry == "none":
        return record
    if record.outcome not in SETTLED:
        return None
    if record.outcome in MEMORY_OUTCOMES and spec is not None and _other_memory(record, spec):
        return None
    return record


def other_settings(record: Record, spec: ServerSpec) -> str:
    """Why a stored record is not what this server would measure, though its point is; empty where it is."""
    differences = unkeyed.changes(record.server.settings, spec.settings) or _other_window(record, spec)
    return f"done with other settings: {differences}: retry=all measures it again" if differences else ""


def check_retry(retry: str) -> None:
    """Refuse an unknown value."""
    if retry not in RETRY:
        raise ConfigError(f"retry={retry} is unknown: choose one of {', '.join(RETRY)}")


def _other_memory(record: Record, spec: ServerSpec) -> bool:
    """Whether the server of a failed record had other memory settings; a point refused unstarted had none."""
    before = record.server.command
    if not before:
        return False
    after = spec.command(0)
    names = ("--mem-fraction-static", "--max-total-tokens", "--chunked-prefill-size")
    return any(_value(before, name) != _value(after, name) for name in names)


def _other_window(record: Record, spec: ServerSpec) -> str:
    """Whether a probe looked at another operating window, in words: a native point's key has none."""
    probed: Any = record.extras.get(_PROBED.get(str(record.point.probe), ""))
    if not spec.probe_windows or not isinstance(probed, dict):
        return ""
    (was, sink), (window, wanted_sink) = (
        (probed.get("window_tokens"), probed.get("sink_tokens")), spec.probe_windows[0]
    )  # fmt: skip
    if (was, sink) == (window, wanted_sink):
        return ""
    return f"the probe's window was {was}+{sink}, is {window}+{wanted_sink}"


def _value(command: Sequence[str], name: str) -> str | None:
    return command[command.index(name) + 1] if name in command[:-1] else None


def recover(results: Path, locks: PointLocks) -> list[str]:
    """Put right what a killed run left in the store; returns a sentence for each thing done.

    A record that was being replaced comes back, or is set aside where its successor is in place. Scratch
    directories and empty ones go, where their names are of this program's making. Anything else is
    somebody's and is only named.
    Points that another harness works on are left alone.
    """
    parent = points_dir(results)
    done: list[str] = []
    begun: set[str] = set()
    for path in sorted(parent.iterdir()) if parent.is_dir() else []:
        scratch = setaside.SCRATCH.fullmatch(path.name)
        if scratch is not None:
            begun.add(scratch[1])
        elif not path.is_symlink() and path.is_dir() and not (path / RECORD_FILE).exists():
            done.append(_without_record(path, locks))
    for key in sorted(begun):
        if locks.acquire(key):
            try:
                done += setaside.put_right(parent / key, results, judged)
            finally:
                locks.release(key)
    for key in locks.keys():  # noqa: SIM118  (no mapping)
        if locks.acquire(key):  # its owner is dead: nobody asks for the lock of a finished point again
            locks.release(key)
    return [text for text in done if text]


def _without_record(path: Path, locks: PointLocks) -> str:
    """What is done about a folder without a record: an empty one of a point goes, others are only named."""
    if any(path.glob(f"*/**/{RECORD_FILE}")):
        return (
            f"{path} holds a result set of its own and is left alone: move its record folders into "
            f"{path.parent}, or it out of there"
        )
    if not _KEY.fullmatch(path.name):
        hidden = path.name.startswith(".")
        return "" if hidden else f"{path} is no record folder and is left alone: move it out of {path.parent}"
    if any(path.iterdir()):
        return (
            f"{path} has no {RECORD_FILE} but other files: it is left alone, and set aside when the point is "
            "measured"
        )
    if not locks.acquire(path.name):
        return ""
    try:
        path.rmdir()
    finally:
        locks.release(path.name)
    return f"{path.name}: removed, no record"
