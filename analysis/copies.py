"""Copies of one measurement: they would make a spread of zero over runs that never were."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from analysis.estimators import MIN_LINES
from harness.records import Record

_RUN = {"seed", "repeat"}


def copies(records: Iterable[Record]) -> dict[str, str]:
    """Keys of records whose decode steps are another's, and whose: under another seed or repeat of its point.

    Two runs do not take the same time to every digit, step by step.
    """
    first: dict[tuple[str, bytes], str] = {}
    found: dict[str, str] = {}
    for record in sorted(records, key=lambda r: (r.point.repeat, r.point.seed, r.key)):
        if len(record.decode_steps) < MIN_LINES:
            continue
        steps = hashlib.sha256(record.decode_steps.model_dump_json().encode()).digest()
        original = first.setdefault((record.point.model_dump_json(exclude=_RUN), steps), record.key)
        if original != record.key:
            found[record.key] = original
    return found
