"""Records of scheduler logs that this program did not write.

Two ways to say what of a log is the timed run: marks as the paper's package prints them
(`RK_DEC_BEGIN tag=... B=...` and `RK_DEC_END tag=...`), one record a tag; or a range of time stamps.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from analysis.foreign_log import numbers, ranks_in, read_foreign
from analysis.foreign_server import Stated, contradictions, server_in, server_of, stated_servers
from analysis.plausible import context_text
from harness import schedlog
from harness.errors import InputError, RecordError
from harness.points import Point, make_point
from harness.records import Outcome, Pool, Record, ServerInfo, points_dir, read_log, read_record, write_record
from harness.server.reported import UNKNOWN_BACKEND

_MARK = re.compile(rb"RK_DEC_(BEGIN|END)\b([^\r\n]*)")
_WORD = re.compile(rb"(\w+)=(\S+)")
# A log of this size takes seconds to read: what it is at is said.
_LARGE_BYTES = 8 << 20
ASSUMED = {
    "depth": ("speculative_num_draft_tokens", 7),
    "window": ("speculative_draft_window_size", 4032),
    "sink": ("speculative_draft_sink_size", 64),
}
"""Options that may be left out: the server's argument that says them, and the value where none does."""


@dataclass(frozen=True)
class Piece:
    """Part of a log.

    Attributes:
        tag, batch: as its mark states them.
        closed: its end was marked.
        start: where it begins in the log.
    """

    tag: str
    batch: int | None
    body: bytes
    closed: bool
    start: int = 0


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
                yield Piece(tag, batch, data[start : found.start()], False, start)
            text = words.get(b"B", "")
            tag, batch, start = name, int(text) if text.isdecimal() and len(text) < 10 else None, found.end()
        elif start >= 0 and name in ("", tag):
            yield Piece(tag, batch, data[start : found.start()], True, start)
            start = -1
    if start >= 0:
        yield Piece(tag, batch, data[start:], False, start)


def time_range(data: bytes, begin: float | None, end: float | None) -> Piece:
    """Lines whose time stamp lies within; a line without one goes with the line before it."""
    kept, inside, at, start = [], begin is None, 0, len(data)
    for line in data.split(b"\n"):
        stamp = schedlog.STAMP.search(line)
        moment = schedlog.seconds(stamp[1]) if stamp else None
        if moment is not None:
            inside = (begin is None or moment >= begin) and (end is None or moment <= end)
        if inside:
            start = min(start, at)
            kept.append(line)
        at += len(line) + 1
    return Piece("", None, b"\n".join(kept), True, start)


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
        InputError: the log cannot be read, holds no decode line where the timed run should be, or says of
            itself something else than the command line; then no record is made.
    """
    data = read_foreign(options.log)
    begin, end = parse_moment(options.begin), parse_moment(options.end)
    pieces = marked_pieces(data) if begin is None and end is None else []
    if not pieces:
        pieces = [time_range(data, begin, end)]
    is_large = len(data) > _LARGE_BYTES
    if is_large:
        sys.stderr.write(f"reading {len(data) / (1 << 20):,.0f} MiB of log\n")
    whole, servers = schedlog.parse(data), stated_servers(data)
    if is_large:
        found = {"server starts": len(servers), "decode steps": len(whole.decode), "runs": len(pieces)}
        sys.stderr.write(f"found {', '.join(f'{count:,} {name}' for name, count in found.items())}\n")
    boots: dict[tuple[int, int], schedlog.SchedulerLog] = {}
    parts = [_part(options, piece, data, servers, boots) for piece in pieces]
    for part in parts:
        part.refuse_contradictions()
    # A set keeps one note of many pieces.
    for note in sorted({part.assumed() for part in parts} - {""}):
        sys.stderr.write(f"neither the log nor the command line says it, assumed: {note}\n")
    seen: Counter[tuple[str, int | None]] = Counter()
    paths = []
    for part in parts:
        piece = part.piece
        # A tag that comes again is a repeat, as is another log: neither may replace the one before.
        record = part.record(seen[piece.tag, piece.batch])
        while record is not None and _holds_another(options.results, record, piece):
            seen[piece.tag, piece.batch] += 1
            record = part.record(seen[piece.tag, piece.batch])
        if record is not None:
            seen[piece.tag, piece.batch] += 1
            paths.append(_store(options.results, record, piece.body))
    if not paths:
        raise InputError(
            f"{options.log} holds no decode line between its marks or times: check --from and --to, and that "
            "the server ran with --decode-log-interval 1"
        )
    return paths


def _store(results: Path, record: Record, log: bytes) -> Path:
    """Write a record, unless the same one is there: its twin would be set aside for nothing."""
    place = points_dir(results) / record.key
    with contextlib.suppress(RecordError):
        if read_record(place) == record:
            return place
    return write_record(results, record, log)


def _holds_another(results: Path, record: Record, piece: Piece) -> bool:
    """Whether the record's place is taken by other lines than the piece's."""
    place = points_dir(results) / record.key
    return place.exists() and read_log(place) != piece.body


def _named(options: argparse.Namespace, piece: Piece) -> str:
    return f"the piece {piece.tag} of {options.log}" if piece.tag else str(options.log)


def _part(
    options: argparse.Namespace,
    piece: Piece,
    data: bytes,
    servers: list[Stated],
    boots: dict[tuple[int, int], schedlog.SchedulerLog],
) -> _Part:
    before = server_of(servers, piece.start)
    server = server_in(piece.body, before)
    if server is None:
        raise InputError(
            f"{_named(options, piece)} holds decode lines of several server starts: cut it to one of "
            "them with --from and --to, or with marks"
        )
    # A piece may begin after the lines that show all ranks.
    end = min((other.start for other in servers if other.start > piece.start), default=len(data))
    # Pools and capacity are those of the piece's own server, not of another one in the same log.
    if server.start:
        lines = piece.body[server.start :]
        boot = schedlog.parse(lines)
    else:
        lines = data[before.start : end]
        boot = boots.get((before.start, end)) or schedlog.parse(lines)
        boots[before.start, end] = boot
    return _Part(options, piece, server, boot, frozenset(ranks_in(lines)))


@dataclass(frozen=True)
class _Part:
    """A piece, what the command line says of it, and the server that wrote it: its lines and `ranks`."""

    options: argparse.Namespace
    piece: Piece
    server: Stated
    boot: schedlog.SchedulerLog
    ranks: frozenset[str]

    @cached_property
    def parsed(self) -> schedlog.SchedulerLog:
        return schedlog.parse(self.piece.body)

    def point(self, repeat: int = 0) -> Point:
        options, piece = self.options, self.piece
        windowed = options.arm in ("windowed", "ring")
        return make_point({
            "model": options.model, "checkpoint": "imported", "hardware": options.hardware,
            "arm": options.arm, "depth": 1 if options.arm == "dense" else self._value("depth"),
            "batch": piece.batch or options.batch, "tp": options.tp, "context_tokens": options.context,
            "task": options.task, "task_params": {"tag": piece.tag} if piece.tag else {}, "repeat": repeat,
            "draft_backend": "-" if options.arm == "dense" else UNKNOWN_BACKEND, **self.server.precision,
            **{f"{name}_tokens": self._value(name) for name in ("window", "sink") if windowed},
        })  # fmt: skip

    def _value(self, name: str) -> int:
        """As the command line says, else the log, else what most servers have."""
        given, (argument, usual) = getattr(self.options, name), ASSUMED[name]
        if given is not None:
            return int(given)
        stated = self.server.arguments.get(argument)
        return stated if isinstance(stated, int) and stated > 0 else usual

    def assumed(self) -> str:
        """What neither the command line nor the log says; empty where nothing is left open."""
        wanted = {"dense": (), "native": ("depth",)}.get(self.options.arm, tuple(ASSUMED))
        values = [
            f"--{name} {self._value(name)}"
            for name in wanted
            if getattr(self.options, name) is None and ASSUMED[name][0] not in self.server.arguments
        ]
        return ", ".join(values)

    def refuse_contradictions(self) -> None:
        """Refuse a description that the log itself contradicts: its record would be of another point.

        Raises:
            InputError: names what differs and what to give instead.
        """
        if not self.parsed.decode:
            return
        point = self.point()
        named = _named(self.options, self.piece)
        if wrong := contradictions(point, self.server):
            raise InputError(
                f"{named} is of another server than the command line says: {'; '.join(wrong)}; give --arm, "
                "--depth, --window, --sink, --tp and --context as the server ran"
            )
        if (most := max(numbers(self.ranks, "TP"), default=0)) >= point.tp:
            raise InputError(
                f"{named} has lines of rank TP{most}, --tp says {point.tp}: give --tp {most + 1}"
            )
        replicas = numbers((row.rank for row in self.parsed.decode), "DP")
        if len(replicas) > 1:
            kept = f"DP{min(replicas)}"
            raise InputError(
                f"{named} is of {len(replicas)} data-parallel ranks, each with requests of its own: keep the "
                f"lines of one (grep {kept}) and give the batch that ran on it"
            )
        if text := context_text(point, schedlog.to_decode_steps(self.parsed)):
            raise InputError(
                f"{named} does not fit --context {point.context_tokens} and batch {point.batch}: {text}; "
                "give those of the run, or cut the log to it with --from and --to"
            )

    def record(self, repeat: int) -> Record | None:
        """The piece's record; None where it holds no decode line."""
        parsed, boot = self.parsed, self.boot
        if not parsed.decode:
            return None
        point = self.point(repeat)
        times = [row.time_s for row in parsed.decode if row.time_s is not None]
        started = datetime.fromtimestamp(times[0], UTC) if times else datetime.fromtimestamp(0, UTC)
        summary = parsed.summary() | {"tag": self.piece.tag, "end_marked": self.piece.closed}
        return Record(
            key=point.key, point=point, source="imported", outcome=Outcome.OK,
            started_at=started.isoformat(timespec="seconds"),
            server=ServerInfo(
                arguments=self.server.arguments,
                pools=[Pool(role=p.role, tokens=p.tokens, bytes=p.bytes, dtype=p.dtype) for p in boot.pools],
                max_total_tokens=boot.capacity.max_total_tokens if boot.capacity else None,
            ),
            decode_steps=schedlog.to_decode_steps(parsed), prefill_steps=schedlog.to_prefill_steps(parsed),
            log_summary=summary,
        )  # fmt: skip
