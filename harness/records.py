"""The record a point leaves behind: schema, atomic writing, reading.

A record is one directory `<results>/points/<key>/` with `record.json` (everything below) and
`server.log.gz` (the raw server log of the timed run). It appears by one rename, so a directory without
`record.json` never exists under its final name. `record.json` carries a digest of its other fields, so that a
damaged or edited number is noticed; records from before there was one are read without.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness import setaside
from harness.errors import RecordError
from harness.points import Point
from harness.regular import read_regular

SCHEMA_VERSION = 1
RECORD_FILE = setaside.RECORD_FILE
DIGEST = "sha256"
"""Field of `record.json`, not of `Record`: the SHA-256 of the canonical JSON of all other fields."""
LOG_FILE = setaside.LOG_FILE
_ROOM_BYTES = 1 << 20


class Outcome(StrEnum):
    """How a point ended. Everything but `ok` carries a reason; out-of-memory cells are results too."""

    OK = "ok"
    INVALID = "invalid"
    DOES_NOT_FIT = "does_not_fit"
    OUT_OF_MEMORY_AT_START = "out_of_memory_at_start"
    OUT_OF_MEMORY_AT_RUN = "out_of_memory_at_run"
    NO_DRAFT_WEIGHTS = "no_draft_weights"
    PORT_IN_USE = "port_in_use"
    STARTUP_TIMEOUT = "startup_timeout"
    STALLED = "stalled"
    SERVER_DIED = "server_died"
    REQUEST_ERROR = "request_error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


class _Part(BaseModel):
    # JSON has no NaN: as null it would make the record unreadable.
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class _Columns(_Part):
    """Lists of one length: entry i of each belongs to line i."""

    @model_validator(mode="after")
    def _even(self) -> Self:
        lengths = {name: len(getattr(self, name)) for name in type(self).model_fields}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of different length: {lengths}")
        return self


class DecodeSteps(_Columns):
    """Columns, one entry a `Decode batch` line of the timed run, in log order. None = not on the line."""

    time_s: list[float | None] = Field(
        default_factory=list, description="log time stamp, seconds since epoch"
    )
    running_requests: list[int] = Field(default_factory=list)
    resident_tokens: list[int | None] = Field(default_factory=list, description="#token or #full token")
    accept_length: list[float | None] = Field(default_factory=list, description="bonus token included")
    throughput_tokens_per_s: list[float] = Field(default_factory=list)
    queued_requests: list[int | None] = Field(default_factory=list)

    def __len__(self) -> int:
        return len(self.running_requests)


class PrefillSteps(_Columns):
    """Columns, one entry a `Prefill batch` line of the timed run."""

    time_s: list[float | None] = Field(default_factory=list)
    new_tokens: list[int] = Field(default_factory=list)
    cached_tokens: list[int] = Field(default_factory=list)
    throughput_tokens_per_s: list[float | None] = Field(default_factory=list)


class RequestResult(_Part):
    """One request of the timed run. Speculation fields are None where the server gave none."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    finish_reason: str | None = None
    e2e_latency_s: float | None = None
    ttft_s: float | None = Field(
        default=None, description="client side, first streamed token; None if not streamed"
    )
    output_ids: list[int] = Field(default_factory=list)
    output_text: str = ""
    verify_steps: int | None = None
    correct_drafts: int | None = None
    proposed_drafts: int | None = None
    accept_histogram: list[int] | None = Field(
        default=None, description="H[n]: verify steps that accepted exactly n drafts, length depth"
    )
    retractions: int | None = None
    scores: dict[str, float] = Field(default_factory=dict)
    meta_info: dict[str, Any] = Field(default_factory=dict, description="as the server sent it")


class InputInfo(_Part):
    """Where the prompt came from."""

    task: str
    sample_id: str
    prompt_tokens: int
    sha256_ids: str
    gold: list[str] = Field(default_factory=list)
    tokenizer: str = ""
    source: str = Field(
        default="generated", description="`generated`, or whose text it is where no parameter says"
    )


class Pool(_Part):
    """One KV pool as the server's log states it."""

    role: str = Field(description="target | draft")
    tokens: int | None = None
    bytes: int | None = None
    dtype: str | None = None


class ServerInfo(_Part):
    """The server that ran the point."""

    boot_id: str = ""
    command: list[str] = Field(default_factory=list)
    arguments: dict[str, Any] = Field(default_factory=dict, description="as the server reports them")
    engine_settings: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(
        default_factory=dict, description="what it was started with that no point names; empty: not known"
    )
    engine_report: dict[str, str] = Field(
        default_factory=dict, description="what the plugin says at start: mode, slots, exact pool bytes"
    )
    max_total_tokens: int | None = None
    max_running_requests: int | None = None
    context_length: int | None = None
    pools: list[Pool] = Field(default_factory=list)
    architecture: dict[str, Any] = Field(
        default_factory=dict, description="of the checkpoint's config: layers that keep KV, heads, their size"
    )
    startup_s: float | None = None
    versions: dict[str, str] = Field(
        default_factory=dict, description="packages that served, where not the harness's own interpreter did"
    )
    image: dict[str, str] = Field(default_factory=dict, description="container image: name, id")


class Record(_Part):
    """Everything a point left behind."""

    schema_version: int = SCHEMA_VERSION
    key: str
    point: Point
    source: str = Field(default="measured", description="measured | imported")
    outcome: Outcome
    reason: str = ""
    started_at: str = Field(description="ISO 8601, UTC")
    duration_s: float | None = None
    environment: dict[str, Any] = Field(default_factory=dict)
    server: ServerInfo = Field(default_factory=ServerInfo)
    input: InputInfo | None = None
    requests: list[RequestResult] = Field(default_factory=list)
    decode_steps: DecodeSteps = Field(default_factory=DecodeSteps)
    prefill_steps: PrefillSteps = Field(default_factory=PrefillSteps)
    log_summary: dict[str, Any] = Field(
        default_factory=dict, description="counts from the parser: unreadable lines, retractions, warnings"
    )
    samples: dict[str, list[Any]] = Field(
        default_factory=dict, description="GPU clocks, power, memory by time"
    )
    extras: dict[str, Any] = Field(default_factory=dict, description="probe and trace results")


def points_dir(results: Path) -> Path:
    """The directory that holds one sub-directory a point."""
    return results / "points"


def write_record(results: Path, record: Record, server_log: bytes = b"") -> Path:
    """Store a record atomically, where an older one of its key allows it (`setaside.place`).

    Returns:
        its directory: the point's, or one in `set_aside` for a failure that came after a measurement.

    Raises:
        RecordError: it cannot be written.
    """
    parent = points_dir(results)
    final = parent / record.key
    scratch = parent / setaside.scratch_name(record.key, "tmp")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        scratch.mkdir()
        values = orjson.loads(record.model_dump_json())
        values[DIGEST] = _digest(values)
        body = orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        _write_synced(scratch / RECORD_FILE, body)
        _write_synced(scratch / LOG_FILE, gzip.compress(server_log, mtime=0))
        return setaside.place(scratch, final, results, judged)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise RecordError(
            f"cannot write the record to {final}: {error.strerror}; free space or fix the path"
        ) from error


def judged(directory: Path, key: str) -> bool | None:
    """Whether a folder of any name holds a key's measurement (True), its failure, or what cannot be read."""
    try:
        record = read_anywhere(directory)
    except RecordError:
        return None
    return record.outcome is Outcome.OK if record.key == key else None


def check_room(results: Path) -> None:
    """Refuse a place where no record could be written, before a server is started for one.

    Raises:
        RecordError: it is full or cannot be written.
    """
    probe = results / f".room.{secrets.token_hex(4)}.tmp"
    try:
        results.mkdir(parents=True, exist_ok=True)
        _write_synced(probe, bytes(_ROOM_BYTES))
    except OSError as error:
        raise RecordError(
            f"cannot write records to {results}: {error.strerror}; free space or fix the path"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(values, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _is_as_written(raw: dict[str, Any]) -> bool:
    """Whether the digest, which is taken out, fits the rest; records from before there was one have none."""
    written = raw.pop(DIGEST, None)
    try:
        return written is None or written == _digest(raw)
    except TypeError:  # nested deeper than anything that is written
        return False


def _write_synced(path: Path, body: bytes) -> None:
    with path.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def read_record(directory: Path) -> Record:
    """Read one record directory.

    Raises:
        RecordError: the file is missing, damaged, of another schema, was changed after it was written, or
            its key does not fit its point or its directory.
    """
    record = read_anywhere(directory)
    # A copy under another name would count twice, and a key is a path of reports.
    if directory.name != record.key:
        raise RecordError(
            f"{directory / RECORD_FILE} is the record {record.key!r}: give its folder that name, or remove "
            "the copy"
        )
    return record


def read_anywhere(directory: Path) -> Record:
    """Read a record directory of any name: one that was set aside.

    Raises:
        RecordError: as `read_record`, but for the name.
    """
    path = directory / RECORD_FILE
    try:
        raw = orjson.loads(read_regular(path))
    except FileNotFoundError:
        raise RecordError(
            f"{directory} holds no {RECORD_FILE}: remove it and measure the point again"
        ) from None
    except (OSError, orjson.JSONDecodeError) as error:
        raise RecordError(f"{path} is damaged ({error}): remove it and measure the point again") from error
    if not isinstance(raw, dict) or "schema_version" not in raw:
        raise RecordError(f"{path} holds no record: remove it and measure the point again")
    version = raw["schema_version"]
    if version != SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema version {version}, this program reads {SCHEMA_VERSION}: "
            "use the release that wrote it"
        )
    if not _is_as_written(raw):
        raise RecordError(
            f"{path} was damaged or edited after it was written: remove it and measure the point again"
        )
    try:
        record = Record.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordError(
            f"{path} is not a valid record ({place}: {first['msg']}): remove it and measure the point again"
        ) from error
    if record.source == "measured" and record.point.key != record.key:
        raise RecordError(
            f"{path} says key {record.key} but its point hashes to {record.point.key}: it was edited"
        )
    return record


def iter_record_dirs(results: Path) -> Iterator[Path]:
    """Record directories under `results`, sorted by name; scratch directories are skipped."""
    parent = points_dir(results)
    try:
        found = sorted(parent.iterdir()) if parent.is_dir() else []
    except OSError as error:
        raise RecordError(f"{parent} cannot be read: {error.strerror}; name another folder") from error
    yield from (p for p in found if p.is_dir() and not p.name.startswith("."))


def read_all(results: Path) -> tuple[list[Record], list[RecordError]]:
    """Every readable record, and an error for each that is not."""
    records: list[Record] = []
    errors: list[RecordError] = []
    for directory in iter_record_dirs(results):
        try:
            records.append(read_record(directory))
        except RecordError as error:
            errors.append(error)
    return records, errors


def read_log(directory: Path) -> bytes:
    """The raw server log stored with a record; empty where none was kept."""
    path = directory / LOG_FILE
    try:
        return gzip.decompress(read_regular(path))
    except FileNotFoundError:
        return b""
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(f"{path} is damaged: {error}") from error
