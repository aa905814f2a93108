"""Copies of one measurement: they would make a spread of zero over runs that never were."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.estimators import MIN_LINES
from harness.records import Record

_RUN = {"seed", "repeat"}

Row = tuple[object, ...]


def copies(records: Iterable[Record]) -> dict[str, str]:
    """Keys of records whose decode steps are another's, and whose: under another seed or repeat of its point.

    Two runs do not take the same time to every digit, step by step. Of a log that was imported while it grew,
    the longest part counts.
    """
    of_point: dict[str, list[tuple[Record, frozenset[Row]]]] = {}
    found: dict[str, str] = {}
    for record in sorted(records, key=lambda r: (-len(r.decode_steps), r.point.repeat, r.point.seed, r.key)):
        if len(record.decode_steps) < MIN_LINES:
            continue
        rows = frozenset(_rows(record))
        others = of_point.setdefault(record.point.model_dump_json(exclude=_RUN), [])
        for other, known in others:
            if rows == known if record.source == "measured" else len(rows & known) >= MIN_LINES:
                found[record.key] = other.key
                break
        else:
            others.append((record, rows))
    return found


def _rows(record: Record) -> Iterable[Row]:
    steps = record.decode_steps
    return zip(
        steps.time_s, steps.running_requests, steps.resident_tokens, steps.accept_length,
        steps.throughput_tokens_per_s, strict=True,
    )  # fmt: skip
