"""SGLang's scheduler log: lines found by their anchor, read as `key: value` pairs in any order.

Shapes seen over 18 months differ in punctuation, order and keys, so nothing here relies on field order.
Parsing never raises: what cannot be read is counted.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.logrows import (
    DECODE,
    PREFILL,
    STAMP,
    BulkShape,
    DecodeLine,
    PrefillLine,
    decode_row,
    prefill_row,
    rank_of,
    seconds,
)
from harness.records import DecodeSteps, PrefillSteps

__all__ = [
    "STAMP", "CapacityLine", "DecodeLine", "Event", "LogFollower", "PluginLine", "PoolLine", "PrefillLine",
    "ReadyLine", "RetractionLine", "SchedulerLog", "parse", "seconds", "to_decode_steps", "to_prefill_steps",
]  # fmt: skip

_ANSI = re.compile(rb"\x1b?\[[0-9;]*m")
_RETRACT = re.compile(
    rb"(KV cache pool is full\. Retract requests|Testing retraction)\..*?#retracted_reqs: (\d{1,15})"
)
# Two sizes for K and V, one for pools that hold both in one buffer; a label where a model has several.
_POOL = re.compile(
    rb"(?:([\w .-]*?) )?KV [Cc]ache (?:is )?allocated\. dtype: (?:torch\.)?([^\s,]+), #tokens: (\d{1,15}), "
    rb"(?:K size: ([\d.]+) GB, V size: ([\d.]+) GB|KV size: ([\d.]+) GB)"
)
_CAPACITY = re.compile(rb"max_total_num_tokens=(-?\d{1,15})\b")
_SETTING = re.compile(rb"(\w+)=(-?\d{1,15})\b")
_PLUGIN = b"windowed-mtp: "
_READY = b"The server is fired up and ready to roll"
_SKIPPED = re.compile(rb"Parameter (\S+) not found in params_dict")
_GB = 1 << 30
_BULK_BYTES = 1 << 20
_MAX_NAMES = 1000


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


class PluginLine(NamedTuple):
    """What the windowing plugin switched on, as it says at start."""

    settings: dict[str, str]


class ReadyLine(NamedTuple):
    """The server accepts requests."""

    time_s: float | None


Event = DecodeLine | PrefillLine | RetractionLine | PoolLine | CapacityLine | PluginLine | ReadyLine


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
    plugin: PluginLine | None = None
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
        self._shape: BulkShape | None = None
        self._pool_labels: list[bytes] = []
        self._pool_rank = ""

    def feed(self, chunk: bytes) -> list[Event]:
        """Parse what became complete and return its events in order."""
        data = self._rest + chunk if self._rest else chunk
        cut = data.rfind(b"\n") + 1
        self._rest = data[cut:]
        events: list[Event] = []
        at = 0
        while at < cut:
            end = cut if cut - at <= _BULK_BYTES else data.rfind(b"\n", at, at + _BULK_BYTES) + 1
            end = end or data.find(b"\n", at) + 1  # a single line longer than a block
            self._block(data[at:end], events)
            at = end
        return events

    def close(self) -> list[Event]:
        """Parse the last line of a log that ends without a newline."""
        rest, self._rest = self._rest, b""
        events: list[Event] = []
        if rest:
            self._lines([rest], events)
        return events

    def _block(self, block: bytes, events: list[Event]) -> None:
        """Whole lines: those of the layout seen last in bulk, the others one by one, in their order."""
        at = 0
        while self._shape is None and at < len(block):
            end = block.find(b"\n", at)
            self._lines([block[at:end]], events)
            at = end + 1
        shape = self._shape
        if shape is None or at >= len(block):
            return
        found, rest = shape.split(block, at), block[at:]
        found.pop()  # the empty match at the very end
        at = 0
        for other in [*(i for i, line in enumerate(found) if not line[0]), len(found)]:
            if other > at:
                self._bulk(shape, found[at:other], range(at, other), rest, events)
            if other < len(found):
                self._lines([found[other][-1]], events)
            at = other + 1

    def _bulk(
        self, shape: BulkShape, lines: list[Any], places: range, block: bytes, events: list[Event]
    ) -> None:
        """Lines of one layout; where one is damaged they are halved until it stands alone."""
        try:
            rows = shape.rows(lines)
        except ValueError:
            if len(lines) == 1:
                self._lines([block.split(b"\n", places[0] + 1)[places[0]]], events)
                return
            middle = len(lines) // 2
            self._bulk(shape, lines[:middle], places[:middle], block, events)
            self._bulk(shape, lines[middle:], places[middle:], block, events)
            return
        self.log.lines += len(rows)
        self.log.decode += rows
        events += rows

    def _lines(self, lines: Iterable[bytes], events: list[Event]) -> None:
        log = self.log
        for line in lines:
            log.lines += 1
            if DECODE in line or PREFILL in line:
                self._batch_line(line, events)
            elif b"etract" in line:
                self._retraction(line, events)
            elif b"V cache allocated" in line or b"V Cache is allocated" in line:
                self._pool(line, events)
            elif b"max_total_num_tokens=" in line:
                self._capacity(line, events)
            elif _PLUGIN in line:
                self._plugin(line, events)
            elif _READY in line:
                stamp = STAMP.search(line)
                log.ready = True
                events.append(ReadyLine(seconds(stamp[1]) if stamp else None))
            elif b"not found in params_dict" in line:
                self._skipped(line)

    def _batch_line(self, line: bytes, events: list[Event]) -> None:
        if b"m" in line and (b"\x1b" in line or b"[0m" in line):
            line = _ANSI.sub(b"", line)
        # Progress bars and other ranks may share the line: every time stamp starts a piece of its own.
        stamps = [m for m in STAMP.finditer(line) if not _quoted(line, m.start())]
        if not stamps:
            self.log.ignored += 1
            return
        ends = [m.start() for m in stamps[1:]] + [len(line)]
        lead = line[: stamps[0].start()]
        if DECODE in lead or PREFILL in lead:
            self.log.ignored += 1
        for stamp, end in zip(stamps, ends, strict=True):
            body = line[stamp.end() : end]
            if body.startswith(DECODE):
                row = decode_row(stamp, body, glued=end < len(line))
                self._keep(row, events, self.log.decode)
                if row is not None and len(stamps) == 1 and not lead:
                    shape = BulkShape(row, body)
                    self._shape = shape if shape.usable else self._shape
            elif body.startswith(PREFILL):
                self._keep(prefill_row(stamp, body), events, self.log.prefill)
            elif DECODE in body or PREFILL in body:
                self.log.ignored += 1
            if b"not found in params_dict" in body:
                self._skipped(body)

    def _keep(self, row: Any, events: list[Event], rows: list[Any]) -> None:
        if row is None:
            self.log.unreadable += 1
        else:
            rows.append(row)
            events.append(row)

    def _retraction(self, line: bytes, events: list[Event]) -> None:
        line = _ANSI.sub(b"", line)
        for stamp in STAMP.finditer(line):
            found = _RETRACT.match(line, stamp.end())
            if found is not None and not _quoted(line, stamp.start()):
                test = found[1].startswith(b"Testing")
                row = RetractionLine(seconds(stamp[1]), int(found[2]), test=test)
                self.log.retractions.append(row)
                events.append(row)

    def _pool(self, line: bytes, events: list[Event]) -> None:
        line = _ANSI.sub(b"", line)
        stamp, found = STAMP.search(line), _POOL.search(line)
        if stamp is None or found is None:
            self.log.unreadable += 1
            return
        rank, label = rank_of(stamp[2]), found[1] or b""
        if not self.log.pools:
            self._pool_rank = rank
        elif rank != self._pool_rank:
            return  # every rank prints its own share
        has_draft = any(pool.role == "draft" for pool in self.log.pools)
        # The target's pools come first; several of them differ in their labels.
        more_target = bool(label) and all(self._pool_labels) and label not in self._pool_labels
        role = "target" if not self.log.pools or (more_target and not has_draft) else "draft"
        self._pool_labels.append(label)
        try:
            size = round(sum(float(text) for text in found.group(4, 5, 6) if text) * _GB)
        except ValueError:
            self.log.unreadable += 1
            return
        row = PoolLine(role, int(found[3]), size, found[2].decode("ascii", "replace"))
        self.log.pools.append(row)
        events.append(row)

    def _plugin(self, line: bytes, events: list[Event]) -> None:
        """What the engine plugin states of itself, the draft pool's exact bytes among it."""
        stamp = STAMP.search(line)
        if stamp is None or not line.startswith(_PLUGIN, stamp.end()):
            return
        if self.log.pools and rank_of(stamp[2]) != self._pool_rank:
            return
        text = line[stamp.end() + len(_PLUGIN) :].decode("utf-8", "replace")
        row = PluginLine(dict(word.split("=", 1) for word in text.split() if "=" in word))
        self.log.plugin = row
        events.append(row)
        exact = row.settings.get("draft_pool_bytes", "")
        pools = self.log.pools
        if exact.isdecimal() and len(exact) < 19 and pools and pools[-1].role == "draft":
            pools[-1] = pools[-1]._replace(bytes=int(exact))

    def _capacity(self, line: bytes, events: list[Event]) -> None:
        found = _CAPACITY.search(line)
        values = {k.decode("ascii", "replace"): int(v) for k, v in _SETTING.findall(line)}
        if found is None or STAMP.search(line) is None or "max_running_requests" not in values:
            return
        row = CapacityLine(
            int(found[1]),
            values.get("max_running_requests"),
            values.get("context_len"),
            values.get("chunked_prefill_size"),
        )
        self.log.capacity = row
        events.append(row)

    def _skipped(self, line: bytes) -> None:
        found = _SKIPPED.search(line)
        if found and len(self.log.skipped_parameters) < _MAX_NAMES:
            self.log.skipped_parameters.append(found[1].decode("utf-8", "replace"))


def _quoted(line: bytes, at: int) -> bool:
    """A stamp right behind a quotation mark is somebody's text about a log, not the log."""
    return line[:at].rstrip(b" ")[-1:] in (b"'", b'"', b"`", b"\\")


def parse(data: bytes) -> SchedulerLog:
    """Parse a whole log."""
    follower = LogFollower()
    # Rows hold no cycles, and looking for some among hundreds of thousands takes a third of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        follower.feed(data)
        follower.close()
    finally:
        if collecting:
            gc.enable()
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
