"""Tidy exports: one row a point, one row a decode step, as Parquet and CSV.

The columns are `POINT_COLUMNS` and `STEP_COLUMNS`; docs/metrics.md describes them. `export_schema_version` is
a column of each row, so that a file says itself what it is.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from analysis.estimators import Estimate, length_agreement
from analysis.files import write_bytes, write_text
from analysis.spreadsheets import to_csv
from analysis.study import Cell, cells_of
from harness.errors import RecordError
from harness.points import Point
from harness.records import SCHEMA_VERSION, Record

if TYPE_CHECKING:
    import pandas as pd

EXPORT_SCHEMA_VERSION = 2
_ESTIMATES = ("step_ms", "accept_length", "tpot_ms")
_POINT_FIELDS = tuple(Point.model_fields)
"""All of them: rows that differ in one left out would look like repeats."""
POINT_COLUMNS = (
    "export_schema_version", "record_schema_version", "key", *_POINT_FIELDS, "source", "outcome", "verdict",
    "reasons", "started_at", "duration_s", "batch_reached", "steady_steps",
    *(f"{name}{end}" for name in _ESTIMATES for end in ("", "_low", "_high")),
    "accept_length_log", "accept_length_histogram", "accept_length_reply", "tokens_per_s_per_user",
    "tokens_per_s_per_gpu", "completion_tokens", "verify_steps", "correct_drafts", "target_pool_tokens",
    "target_pool_bytes", "draft_pool_tokens", "draft_pool_bytes",
)  # fmt: skip
STEP_COLUMNS = (
    "export_schema_version", "key", "step", "time_s", "running_requests", "resident_tokens", "accept_length",
    "throughput_tokens_per_s", "queued_requests", "step_ms",
)  # fmt: skip


def point_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row a record, columns `POINT_COLUMNS`."""
    import pandas as pd  # noqa: PLC0415

    return pd.DataFrame([_point_row(cell) for cell in cells_of(records)], columns=list(POINT_COLUMNS))


def _point_row(cell: Cell) -> dict[str, Any]:
    record, found, verdict = cell.record, cell.statistics, cell.verdict
    pools = {pool.role: pool for pool in record.server.pools}
    lengths = length_agreement(record)
    row: dict[str, Any] = {
        "export_schema_version": EXPORT_SCHEMA_VERSION,
        "record_schema_version": record.schema_version,
        "key": record.key,
        **{name: getattr(record.point, name) for name in _POINT_FIELDS},
        "task_params": orjson.dumps(record.point.task_params, option=orjson.OPT_SORT_KEYS).decode(),
        "source": record.source, "outcome": str(record.outcome), "verdict": verdict.label,
        "reasons": verdict.text, "started_at": record.started_at, "duration_s": record.duration_s,
        "batch_reached": found.batch if found else None, "steady_steps": found.steady_steps if found else 0,
        "accept_length_log": lengths.log, "accept_length_histogram": lengths.histogram,
        "accept_length_reply": lengths.reply,
        "tokens_per_s_per_user": found.tokens_per_s_per_user() if found else None,
        "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu(record.point.tp) if found else None,
        "completion_tokens": sum(r.completion_tokens for r in record.requests),
        "verify_steps": _total(record, "verify_steps"), "correct_drafts": _total(record, "correct_drafts"),
    }  # fmt: skip
    if record.source == "imported":  # a log does not say what its client asked for
        row |= dict.fromkeys(("max_new_tokens", "repetition_penalty", "temperature", "ignore_eos", "seed"))
    for name in _ESTIMATES:
        estimate: Estimate | None = getattr(found, name) if found else None
        row[name] = estimate.value if estimate else None
        row[f"{name}_low"] = estimate.low if estimate else None
        row[f"{name}_high"] = estimate.high if estimate else None
    for role in ("target", "draft"):
        pool = pools.get(role)
        row[f"{role}_pool_tokens"] = pool.tokens if pool else None
        row[f"{role}_pool_bytes"] = pool.bytes if pool else None
    return row


def _total(record: Record, name: str) -> int | None:
    values = [getattr(request, name) for request in record.requests]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def step_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row a decode line of every record, columns `STEP_COLUMNS`; step_ms = B AL / X of the line."""
    import pandas as pd  # noqa: PLC0415

    parts = []
    for record in records:
        steps = record.decode_steps
        n = len(steps)
        if not n:
            continue
        part = pd.DataFrame({
            "export_schema_version": EXPORT_SCHEMA_VERSION, "key": record.key, "step": range(n),
            "time_s": pd.array(steps.time_s, dtype="Float64"),
            "running_requests": pd.array(steps.running_requests, dtype="Int64"),
            "resident_tokens": pd.array(steps.resident_tokens, dtype="Int64"),
            "accept_length": pd.array(steps.accept_length, dtype="Float64"),
            "throughput_tokens_per_s": pd.array(steps.throughput_tokens_per_s, dtype="Float64"),
            "queued_requests": pd.array(steps.queued_requests, dtype="Int64"),
        })  # fmt: skip
        rate = part["throughput_tokens_per_s"].where(part["throughput_tokens_per_s"] > 0)
        part["step_ms"] = 1000 * part["running_requests"] * part["accept_length"].fillna(1.0) / rate
        parts.append(part)
    if not parts:
        return pd.DataFrame(columns=list(STEP_COLUMNS))
    return pd.concat(parts, ignore_index=True)[list(STEP_COLUMNS)]


def write(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write points and steps in both formats; returns the paths."""
    paths = []
    for name, frame in (("points", point_frame(records)), ("decode_steps", step_frame(records))):
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        paths.append(write_bytes(folder / f"{name}.parquet", buffer.getvalue()))
        paths.append(write_text(folder / f"{name}.csv", to_csv(frame)))
    return paths


def read(path: Path) -> pd.DataFrame:
    """Read an exported file of this version.

    Raises:
        RecordError: another version, or no export of this program.
    """
    import pandas as pd  # noqa: PLC0415

    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    versions = set(frame.get("export_schema_version", pd.Series(dtype="int64")))
    if len(frame) and versions != {EXPORT_SCHEMA_VERSION}:
        raise RecordError(
            f"{path} has export schema {sorted(map(str, versions)) or 'none'}, this program reads "
            f"{EXPORT_SCHEMA_VERSION} (records of schema {SCHEMA_VERSION}): export it again from the records"
        )
    return frame
