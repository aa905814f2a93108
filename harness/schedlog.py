"""SGLang's scheduler log: lines found by their anchor, read as `key: value` pairs in any order.

Shapes seen over 18 months differ in punctuation, order and keys, so nothing here relies on field order.
Parsing never raises: what cannot be read is counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from harness.records import DecodeSteps, PrefillSteps

_ANSI = re.compile(rb"\x1b?\[[0-9;]*m")
# A scheduler line starts with its time stamp and rank; text quoted by someone else does not.
_STAMP = re.compile(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)((?: [A-Z]+\d+)*)\] ?")
_PAIR = re.compile(rb"([#A-Za-z][^,:\[\]]*?): ?(-?\d+(?:\.\d+)?|nan|inf|True|False)(?=[,\s]|$)")
_DECODE, _PREFILL = b"Decode batch", b"Prefill batch"
_RETRACT = re.compile(
    rb"(KV cache pool is full\. Retract requests|Testing retraction)\..*?#retracted_reqs: (\d+)"
)
_POOL = re.compile(
    rb"KV Cache is allocated\. dtype: (?:torch\.)?(\S+?), #tokens: (\d+), "
    rb"K size: ([\d.]+) GB, V size: ([\d.]+) GB"
)
_CAPACITY = re.compile(rb"max_total_num_tokens=(-?\d+)")
_SETTING = re.compile(rb"(\w+)=(-?\d+)")
_READY = b"The server is fired up and ready to roll"
_SKIPPED = re.compile(rb"Parameter (\S+) not found in params_dict")
_GB = 1 << 30


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


class RetractionLine(NamedTuple):
    """Requests thrown out of a full pool; `test` marks SGLang's own retraction test."""

    time_s: float | None
    requests: int
    test: bool


class PoolLine(NamedTuple):
    """A KV pool as allocated: the first of a server is the target's, the second the draft's.

    `bytes` is rounded by the log to 10 MB steps.
    """

    role: str
    tokens: int
    bytes: int
    dtype: str


class CapacityLine(NamedTuple):
    """Limits that the scheduler states after its pools are made."""

    max_total_tokens: int
    max_running_requests: int | None
    context_length: int | None
    chunked_prefill_tokens: int | None


class ReadyLine(NamedTuple):
    """The server accepts requests."""

    time_s: float | None


Event = DecodeLine | PrefillLine | RetractionLine | PoolLine | CapacityLine | ReadyLine


@dataclass
class SchedulerLog:
    """Everything read from one log.

    `unreadable` counts scheduler lines that were torn or lacked what a step needs; `ignored` counts lines
    that mention an anchor without being the scheduler's.
    """

    decode: list[DecodeLine] = field(default_factory=list)
    prefill: list[PrefillLine] = field(default_factory=list)
    retractions: list[RetractionLine] = field(default_factory=list)
    pools: list[PoolLine] = field(default_factory=list)
    capacity: CapacityLine | None = None
    ready: bool = False
    lines: int = 0
    unreadable: int = 0
    ignored: int = 0
    skipped_parameters: list[str] = field(default_factory=list)

    @property
    def retracted_requests(self) -> int:
        """Requests retracted for lack of room, tests of retraction excluded."""
        return sum(line.requests for line in self.retractions if not line.test)

    def summary(self) -> dict[str, Any]:
        """Counts for a record."""
        return {
            "lines": self.lines,
            "unreadable": self.unreadable,
            "ignored": self.ignored,
            "retraction_events": sum(not line.test for line in self.retractions),
            "retracted_requests": self.retracted_requests,
            "skipped_parameters": self.skipped_parameters,
        }


class LogFollower:
    """Parses a growing log: feed it chunks as they come; a torn last line waits for its rest."""

    def __init__(self) -> None:
        self.log = SchedulerLog()
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Event]:
        """Parse what became complete and return its events in order."""
        data = self._rest + chunk
        cut = data.rfind(b"\n") + 1
        self._rest = data[cut:]
        return self._lines(data[:cut].split(b"\n")[:-1]) if cut else []

    def close(self) -> list[Event]:
        """Parse the last line of a log that ends without a newline."""
        rest, self._rest = self._rest, b""
        return self._lines([rest]) if rest else []

    def _lines(self, lines: Iterable[bytes]) -> list[Event]:
        events: list[Event] = []
        log = self.log
        for line in lines:
            log.lines += 1
            if _DECODE in line or _PREFILL in line:
                self._batch_line(line, events)
            elif b"etract" in line:
                self._retraction(line, events)
            elif b"KV Cache is allocated" in line:
                self._pool(line, events)
            elif b"max_total_num_tokens=" in line:
                self._capacity(line, events)
            elif _READY in line:
                stamp = _STAMP.search(line)
                log.ready = True
                events.append(ReadyLine(_seconds(stamp)))
            elif b"not found in params_dict" in line:
                found = _SKIPPED.search(line)
                if found:
                    log.skipped_parameters.append(found[1].decode("utf-8", "replace"))
        return events

    def _batch_line(self, line: bytes, events: list[Event]) -> None:
        if b"[0m" in line or b"\x1b" in line:
            line = _ANSI.sub(b"", line)
        stamp = _STAMP.match(line)
        if stamp is not None and line.startswith(_DECODE, stamp.end()) and line.count(b"[") == 1:
            self._step(_decode_line(stamp, line[stamp.end() :]), events, self.log.decode)
            return
        # Progress bars and other ranks may share the line: every time stamp starts a piece of its own.
        starts = [m.start() for m in _STAMP.finditer(line)]
        if not starts:
            self.log.ignored += 1
            return
        for start, end in zip(starts, [*starts[1:], len(line)], strict=True):
            stamp = _STAMP.match(line, start)
            if stamp is None:
                continue
            body = line[stamp.end() : end]
            if body.startswith(_DECODE):
                self._step(_decode_line(stamp, body), events, self.log.decode)
            elif body.startswith(_PREFILL):
                self._step(_prefill_line(stamp, body), events, self.log.prefill)
            elif _DECODE in body or _PREFILL in body:
                self.log.ignored += 1

    def _step(self, row: Any, events: list[Event], rows: list[Any]) -> None:
        if row is None:
            self.log.unreadable += 1
        else:
            rows.append(row)
            events.append(row)

    def _retraction(self, line: bytes, events: list[Event]) -> None:
        found, stamp = _RETRACT.search(line), _STAMP.search(line)
        if found is None or stamp is None or not line[stamp.end() :].startswith(found[1]):
            return
        row = RetractionLine(_seconds(stamp), int(found[2]), test=found[1].startswith(b"Testing"))
        self.log.retractions.append(row)
        events.append(row)

    def _pool(self, line: bytes, events: list[Event]) -> None:
        found = _POOL.search(line)
        if found is None:
            self.log.unreadable += 1
            return
        rank = _rank(_STAMP.search(line))
        if rank not in ("", "TP0"):
            return  # every rank prints its own share
        role = "target" if not self.log.pools else "draft"
        size = round((float(found[3]) + float(found[4])) * _GB)
        row = PoolLine(role, int(found[2]), size, found[1].decode("ascii", "replace"))
        self.log.pools.append(row)
        events.append(row)

    def _capacity(self, line: bytes, events: list[Event]) -> None:
        found = _CAPACITY.search(line)
        values = {k.decode("ascii", "replace"): int(v) for k, v in _SETTING.findall(line)}
        if found is None or "max_running_requests" not in values:
            return
        row = CapacityLine(
            int(found[1]),
            values.get("max_running_requests"),
            values.get("context_len"),
            values.get("chunked_prefill_size"),
        )
        self.log.capacity = row
        events.append(row)


def parse(data: bytes) -> SchedulerLog:
    """Parse a whole log."""
    follower = LogFollower()
    follower.feed(data.replace(b"\r\n", b"\n"))
    follower.close()
    return follower.log


def to_decode_steps(log: SchedulerLog) -> DecodeSteps:
    """Decode lines of the first rank as record columns; other ranks repeat the same steps."""
    rows = _first_rank(log.decode)
    return DecodeSteps(
        time_s=[r.time_s for r in rows],
        running_requests=[r.running_requests for r in rows],
        resident_tokens=[r.resident_tokens for r in rows],
        accept_length=[r.accept_length for r in rows],
        throughput_tokens_per_s=[r.throughput_tokens_per_s for r in rows],
        queued_requests=[r.queued_requests for r in rows],
    )


def to_prefill_steps(log: SchedulerLog) -> PrefillSteps:
    """Prefill lines of the first rank as record columns."""
    rows = _first_rank(log.prefill)
    return PrefillSteps(
        time_s=[r.time_s for r in rows],
        new_tokens=[r.new_tokens for r in rows],
        cached_tokens=[r.cached_tokens for r in rows],
        throughput_tokens_per_s=[r.throughput_tokens_per_s for r in rows],
    )


def _first_rank(rows: list[Any]) -> list[Any]:
    ranks = {row.rank for row in rows}
    if len(ranks) < 2:
        return rows
    first = min(ranks)
    return [row for row in rows if row.rank == first]


def _pairs(body: bytes) -> dict[bytes, bytes]:
    # Old releases write "Decode batch. #running-req", newer ones a comma.
    return {key.rpartition(b". ")[2].strip(): value for key, value in _PAIR.findall(body)}


class _Shape:
    """A decode line's layout, learned from one line read the slow way: later lines of it need one match."""

    def __init__(self, body: bytes, wanted: tuple[bytes, ...]) -> None:
        pattern, at, names = b"", 0, []
        for found in _PAIR.finditer(body):
            names.append(found[1].rpartition(b". ")[2].strip())
            # Only what follows the number may differ: trailing commas and blanks.
            group = rb"(-?\d+(?:\.\d+)?)" if names[-1] in wanted else rb"[\w.-]+"
            pattern += re.escape(body[at : found.start(2)]) + group
            at = found.end(2)
        self.match = re.compile(pattern + rb"[,\s]*$").match
        kept = [name for name in names if name in wanted]
        self.order = tuple(kept.index(name) + 1 if name in kept else 0 for name in wanted)
        # One name twice would make the groups ambiguous.
        self.usable = len(set(names)) == len(names)


_WANTED = (
    b"#running-req", b"gen throughput (token/s)", b"#full token", b"#token", b"full token usage",
    b"token usage", b"accept len", b"accept rate", b"#queue-req",
)  # fmt: skip
_MAX_SHAPES = 8
_shapes: list[tuple[_Shape, str]] = []


def _decode_line(stamp: re.Match[bytes], body: bytes) -> DecodeLine | None:
    for shape, pool in _shapes:
        found = shape.match(body)
        if found is not None:
            run, gen, full, tok, full_use, use, length, rate, queue = shape.order
            resident = found[full] if full else found[tok] if tok else None
            usage = found[full_use] if full_use else found[use] if use else None
            return DecodeLine(
                _seconds(stamp),
                _rank(stamp),
                int(found[run]),
                int(resident) if resident is not None else None,
                float(usage) if usage is not None else None,
                float(found[length]) if length else None,
                float(found[rate]) if rate else None,
                float(found[gen]),
                int(found[queue]) if queue else None,
                pool,
            )
    row = _slow_decode_line(stamp, body)
    if row is not None and len(_shapes) < _MAX_SHAPES:
        shape = _Shape(body, _WANTED)
        if shape.usable and shape.match(body) is not None:
            _shapes.append((shape, row.pool))
    return row


def _slow_decode_line(stamp: re.Match[bytes], body: bytes) -> DecodeLine | None:
    pairs = _pairs(body)
    try:
        running = int(pairs[b"#running-req"])
        throughput = float(pairs[b"gen throughput (token/s)"])
    except (KeyError, ValueError):
        return None
    full = pairs.get(b"#full token")
    pool = "dense"
    if full is not None:
        pool = "full+swa" if b"#swa token" in pairs else "full+mamba" if b"mamba num" in pairs else "full"
    return DecodeLine(
        time_s=_seconds(stamp),
        rank=_rank(stamp),
        running_requests=running,
        resident_tokens=_integer(full if full is not None else pairs.get(b"#token")),
        token_usage=_number(pairs.get(b"full token usage", pairs.get(b"token usage"))),
        accept_length=_number(pairs.get(b"accept len")),
        accept_rate=_number(pairs.get(b"accept rate")),
        throughput_tokens_per_s=throughput,
        queued_requests=_integer(pairs.get(b"#queue-req")),
        pool=pool,
    )


def _prefill_line(stamp: re.Match[bytes], body: bytes) -> PrefillLine | None:
    pairs = _pairs(body)
    new = _integer(pairs.get(b"#new-token"))
    if new is None:
        return None
    return PrefillLine(
        time_s=_seconds(stamp),
        rank=_rank(stamp),
        new_tokens=new,
        cached_tokens=_integer(pairs.get(b"#cached-token")) or 0,
        pending_tokens=_integer(pairs.get(b"#pending-token")),
        running_requests=_integer(pairs.get(b"#running-req")),
        throughput_tokens_per_s=_number(pairs.get(b"input throughput (token/s)")),
    )


def _integer(text: bytes | None) -> int | None:
    number = _number(text)
    return int(number) if number is not None and math.isfinite(number) else None


def _number(text: bytes | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _rank(stamp: re.Match[bytes] | None) -> str:
    return stamp[2].decode("ascii").strip() if stamp is not None else ""


_times: dict[bytes, float | None] = {}


def _seconds(stamp: re.Match[bytes] | None) -> float | None:
    """The stamp as seconds since the epoch, read as UTC: only differences and order are used."""
    if stamp is None:
        return None
    text = stamp[1]
    if text not in _times:
        if len(_times) > 10_000:
            _times.clear()
        try:
            moment = datetime.strptime(text.decode("ascii"), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            _times[text] = moment.timestamp()
        except ValueError:
            _times[text] = None
    return _times[text]
