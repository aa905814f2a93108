"""Records of scheduler logs that this program did not write.

Two ways to say what of a log is the timed run: marks as the paper's package prints them
(`RK_DEC_BEGIN tag=... B=...` and `RK_DEC_END tag=...`), one record a tag; or a range of time stamps.
"""

from __future__ import annotations

import argparse
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness import schedlog
from harness.errors import InputError
from harness.points import make_point
from harness.records import Outcome, Pool, Record, ServerInfo, points_dir, read_log, write_record

_MARK = re.compile(rb"RK_DEC_(BEGIN|END)\b([^\r\n]*)")
_WORD = re.compile(rb"(\w+)=(\S+)")


@dataclass(frozen=True)
class Piece:
    """Part of a log: its tag, the batch its mark states, its bytes, and whether its end was marked."""

    tag: str
    batch: int | None
    body: bytes
    closed: bool


def marked_pieces(data: bytes) -> list[Piece]:
    """Pieces between marks, in order. A BEGIN inside an open piece ends that piece unclosed."""
    return list(_pieces(data))


def _pieces(data: bytes) -> Iterator[Piece]:
    tag, batch, start = "", None, -1
    for found in _MARK.finditer(data):
        words = {k: v.decode("utf-8", "replace").strip("'\",") for k, v in _WORD.findall(found[2])}
        name = words.get(b"tag", "")
        if found[1] == b"BEGIN":
            if start >= 0:
                yield Piece(tag, batch, data[start : found.start()], closed=False)
            text = words.get(b"B", "")
            tag, batch, start = name, int(text) if text.isdecimal() and len(text) < 10 else None, found.end()
        elif start >= 0 and name in ("", tag):
            yield Piece(tag, batch, data[start : found.start()], closed=True)
            start = -1
    if start >= 0:
        yield Piece(tag, batch, data[start:], closed=False)


def time_range(data: bytes, begin: float | None, end: float | None) -> bytes:
    """Lines whose time stamp lies within; a line without one goes with the line before it."""
    kept, inside = [], begin is None
    for line in data.split(b"\n"):
        stamp = schedlog.STAMP.search(line)
        moment = schedlog.seconds(stamp[1]) if stamp else None
        if moment is not None:
            inside = (begin is None or moment >= begin) and (end is None or moment <= end)
        if inside:
            kept.append(line)
    return b"\n".join(kept)


def parse_moment(text: str | None) -> float | None:
    """`2026-11-30 02:28:54` as the log's own clock reads.

    Raises:
        InputError: not a time stamp.
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip().strip("[]"))
    except (ValueError, OverflowError) as error:
        raise InputError(f"{text!r} is no time stamp like 2026-11-30 02:28:54") from error
    if moment.tzinfo is not None:
        raise InputError(f"{text!r} names a time zone, the log's clock has none: write 2026-11-30 02:28:54")
    return moment.replace(tzinfo=UTC).timestamp()


def import_log(options: argparse.Namespace) -> list[Path]:
    """Store a record a piece; returns their directories.

    Raises:
        InputError: the log cannot be read, or holds no decode line where the timed run should be.
    """
    try:
        data = options.log.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{options.log} cannot be read: {error}") from error
    begin, end = parse_moment(options.begin), parse_moment(options.end)
    pieces = marked_pieces(data) if begin is None and end is None else []
    if not pieces:
        pieces = [Piece("", None, time_range(data, begin, end), closed=True)]
    whole = schedlog.parse(data)
    seen: Counter[tuple[str, int | None]] = Counter()
    paths = []
    for piece in pieces:
        # A tag that comes again is a repeat, as is another log: neither may replace the one before.
        record = _record(options, piece, seen[piece.tag, piece.batch], whole)
        while record is not None and _holds_another(options.results, record, piece):
            seen[piece.tag, piece.batch] += 1
            record = _record(options, piece, seen[piece.tag, piece.batch], whole)
        if record is not None:
            seen[piece.tag, piece.batch] += 1
            paths.append(write_record(options.results, record, piece.body))
    if not paths:
        raise InputError(
            f"{options.log} holds no decode line between its marks or times: check --from and --to, and that "
            "the server ran with --decode-log-interval 1"
        )
    return paths


def _holds_another(results: Path, record: Record, piece: Piece) -> bool:
    """Whether the record's place is taken by other lines than the piece's."""
    place = points_dir(results) / record.key
    return place.exists() and read_log(place) != piece.body


def _record(
    options: argparse.Namespace, piece: Piece, repeat: int, whole: schedlog.SchedulerLog
) -> Record | None:
    parsed = schedlog.parse(piece.body)
    if not parsed.decode:
        return None
    windowed = options.arm in ("windowed", "ring")
    point = make_point({
        "model": options.model, "checkpoint": "imported", "hardware": options.hardware, "arm": options.arm,
        "depth": 1 if options.arm == "dense" else options.depth, "batch": piece.batch or options.batch,
        "tp": options.tp, "context_tokens": options.context, "task": options.task,
        "task_params": {"tag": piece.tag} if piece.tag else {}, "repeat": repeat,
        "draft_backend": "-" if options.arm == "dense" else "unknown",
        **({"window_tokens": options.window, "sink_tokens": options.sink} if windowed else {}),
    })  # fmt: skip
    times = [row.time_s for row in parsed.decode if row.time_s is not None]
    started = datetime.fromtimestamp(times[0], UTC) if times else datetime.fromtimestamp(0, UTC)
    summary = parsed.summary() | {"tag": piece.tag, "end_marked": piece.closed}
    return Record(
        key=point.key, point=point, source="imported", outcome=Outcome.OK,
        started_at=started.isoformat(timespec="seconds"),
        server=ServerInfo(
            pools=[Pool(role=p.role, tokens=p.tokens, bytes=p.bytes, dtype=p.dtype) for p in whole.pools],
            max_total_tokens=whole.capacity.max_total_tokens if whole.capacity else None,
        ),
        decode_steps=schedlog.to_decode_steps(parsed), prefill_steps=schedlog.to_prefill_steps(parsed),
        log_summary=summary,
    )  # fmt: skip
