"""Rows of SGLang's scheduler log and how one line becomes a row.

A line is read as `key: value` pairs in any order. Lines of a layout seen before are read in bulk by one
regular expression learned from the first of them, which is what makes large logs cheap.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

DECODE, PREFILL = b"Decode batch", b"Prefill batch"
# A scheduler line starts with its time stamp and rank; text quoted by someone else does not.
STAMP = re.compile(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)((?: [A-Z][A-Z_]*\d+)*)\] ?")
_PAIR = re.compile(
    rb"([#A-Za-z][^,:\[\]]*?): ?([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf|True|False)(?=[,\s]|$)"
)
# Larger integers are damage, and no JSON reader would take them.
_MAX_INTEGER = 1 << 53


class DecodeLine(NamedTuple):
    """One decode step. None = the line does not say. Throughput is over the whole batch."""

    time_s: float | None
    rank: str
    running_requests: int
    resident_tokens: int | None
    token_usage: float | None
    accept_length: float | None
    accept_rate: float | None
    throughput_tokens_per_s: float
    queued_requests: int | None
    pool: str


class PrefillLine(NamedTuple):
    """One prefill chunk."""

    time_s: float | None
    rank: str
    new_tokens: int
    cached_tokens: int
    pending_tokens: int | None
    running_requests: int | None
    throughput_tokens_per_s: float | None


_WANTED = (
    b"#running-req", b"gen throughput (token/s)", b"#full token", b"#token", b"full token usage",
    b"token usage", b"accept len", b"accept rate", b"#queue-req",
)  # fmt: skip
_INTEGERS = frozenset({b"#running-req", b"#full token", b"#token", b"#queue-req"})


def pairs(body: bytes) -> dict[bytes, bytes]:
    """The `key: value` pairs of a line; empty where two values of one key contradict: two lines in one."""
    found: dict[bytes, bytes] = {}
    for key, value in _PAIR.findall(body):
        # Old releases write "Decode batch. #running-req", newer ones a comma.
        if found.setdefault(key.rpartition(b". ")[2].strip(), value) != value:
            return {}
    return found


def decode_row(stamp: re.Match[bytes], body: bytes, glued: bool = False) -> DecodeLine | None:
    """A decode line as a row, or None where it is torn or lacks what a step needs.

    Args:
        stamp: the time stamp and rank before it.
        body: from its anchor on.
        glued: another writer's text follows on the same line, so that the last value may be cut short.
    """
    found = pairs(body)
    running = integer(found.get(b"#running-req"))
    throughput = number(found.get(b"gen throughput (token/s)"))
    if running is None or throughput is None:
        return None
    if glued and b"#queue-req" not in found and body.rstrip().endswith(found[b"gen throughput (token/s)"]):
        return None
    full = found.get(b"#full token")
    return DecodeLine(
        time_s=seconds(stamp[1]),
        rank=rank_of(stamp[2]),
        running_requests=running,
        resident_tokens=integer(full if full is not None else found.get(b"#token")),
        token_usage=number(found.get(b"full token usage", found.get(b"token usage"))),
        accept_length=number(found.get(b"accept len")),
        accept_rate=number(found.get(b"accept rate")),
        throughput_tokens_per_s=throughput,
        queued_requests=integer(found.get(b"#queue-req")),
        pool=_pool_kind(found),
    )


def _pool_kind(found: dict[bytes, bytes]) -> str:
    parts = ["full"] if b"#full token" in found else []
    parts += ["mamba"] if b"mamba num" in found or b"mamba usage" in found else []
    parts += ["swa"] if b"#swa token" in found else []
    return "+".join(parts) or "dense"


def prefill_row(stamp: re.Match[bytes], body: bytes) -> PrefillLine | None:
    """A prefill line as a row, or None where it is torn."""
    found = pairs(body)
    new = integer(found.get(b"#new-token"))
    if new is None:
        return None
    return PrefillLine(
        time_s=seconds(stamp[1]),
        rank=rank_of(stamp[2]),
        new_tokens=new,
        cached_tokens=integer(found.get(b"#cached-token")) or 0,
        pending_tokens=integer(found.get(b"#pending-token")),
        running_requests=integer(found.get(b"#running-req")),
        throughput_tokens_per_s=number(found.get(b"input throughput (token/s)")),
    )


def number(text: bytes | None) -> float | None:
    """A finite number from 0 on, as all of a log's are, else None."""
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def integer(text: bytes | None) -> int | None:
    """A whole number of sensible size, else None."""
    value = number(text)
    return int(value) if value is not None and value < _MAX_INTEGER and value.is_integer() else None


def rank_of(text: bytes) -> str:
    """`TP0`, `DP1 TP0`, or empty for a server of one rank."""
    return text.decode("ascii").strip()


_times: dict[bytes, float | None] = {}


def seconds(text: bytes) -> float | None:
    """The stamp as seconds since the epoch, read as UTC: only differences and order are used."""
    if text not in _times:
        if len(_times) > 10_000:
            _times.clear()
        whole, _, fraction = text.replace(b",", b".").partition(b".")
        try:
            moment = datetime.strptime(whole.decode("ascii"), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            _times[text] = moment.timestamp() + (float(b"0." + fraction) if fraction else 0.0)
        except ValueError:
            _times[text] = None
    return _times[text]


class BulkShape:
    """The layout of one decode line, as a regular expression over many lines.

    `split` returns one tuple a line of the data: (stamp and ranks, wanted values ..., b"") where the line has
    this layout, and (b"", ..., line) where it has not. The expression is lenient about numbers and stamps,
    since strict ones cost twice the time: `rows` refuses what does not convert.
    """

    def __init__(self, row: DecodeLine, body: bytes) -> None:
        pattern, at, names = rb"\[([^\]\n]{19,90})\] ?", 0, []
        for found in _PAIR.finditer(body):
            name = found[1].rpartition(b". ")[2].strip()
            names.append(name)
            # Whatever was a number stays one: by the names of such values pools are told apart.
            group = rb"\d[\d.]*" if found[2][:1].isdigit() else rb"[^,\[\n]+"
            if name in _WANTED:
                group = rb"(\d{1,15})" if name in _INTEGERS else rb"(\d(?:[\d.]{0,28}\d)?)"
            pattern += re.escape(body[at : found.start(2)]) + group
            at = found.end(2)
        # Only what follows the last number may differ: trailing commas, blanks, a carriage return.
        pattern += rb"[, \t\r]*(?:\n|\Z)|([^\n]*)(?:\n|\Z)"
        # One name twice would make the groups ambiguous; a last value of any kind could hide other text.
        self.usable = (
            len(set(names)) == len(names) and names[-1] in _WANTED and not body[at:].strip(b", \t\r")
        )
        self.split = re.compile(pattern).findall
        kept = [name for name in names if name in _WANTED]
        self._column = {name: kept.index(name) + 1 for name in kept}
        self._pool = row.pool

    def rows(self, lines: Sequence[tuple[bytes, ...]]) -> list[DecodeLine]:
        """Rows of lines that all have this layout.

        Raises:
            ValueError: a stamp or number that only looked like one.
        """
        columns = list(zip(*lines, strict=True))
        stamps: dict[bytes, tuple[float | None, str]] = {}
        for text in set(columns[0]):
            stamp = STAMP.fullmatch(b"[" + text + b"]")
            if stamp is None:
                raise ValueError("not a time stamp")
            stamps[text] = seconds(stamp[1]), rank_of(stamp[2])
        times, ranks = zip(*map(stamps.__getitem__, columns[0]), strict=True)
        count = len(lines)

        def column(kind: type, *names: bytes) -> Any:
            at = next((self._column[name] for name in names if name in self._column), None)
            return [None] * count if at is None else map(kind, columns[at])

        fields = zip(
            times,
            ranks,
            column(int, b"#running-req"),
            column(int, b"#full token", b"#token"),
            column(float, b"full token usage", b"token usage"),
            column(float, b"accept len"),
            column(float, b"accept rate"),
            column(float, b"gen throughput (token/s)"),
            column(int, b"#queue-req"),
            [self._pool] * count,
            strict=True,
        )
        return list(map(partial(tuple.__new__, DecodeLine), fields))
