"""Where the time of one decode iteration goes: marks at the borders of its parts, read out afterwards.

Parts nest (an index build inside a forward), and each moment belongs to the innermost one, so that the parts
always add up to the whole. A mark is a clock reading and a list entry, nothing more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.phases import ITERATION
from harness.phases import UNATTRIBUTED as OUTSIDE


class Clock(Protocol):
    """Takes marks now, and tells the time between two of them later."""

    source: str

    def start(self) -> None:
        """Called before the first mark of an iteration."""

    def mark(self) -> Any:
        """A point in time, cheap to take."""

    def ready(self, mark: Any) -> bool:
        """Whether a mark can be read without waiting."""

    def between_ns(self, first: Any, second: Any) -> int:
        """Nanoseconds from one mark to another."""


class HostClock:
    """The monotonic clock: right where forwards return once they are done, as on a CPU."""

    source = "host"
    mark = staticmethod(time.monotonic_ns)

    def start(self) -> None:
        """Nothing to prepare."""

    def ready(self, mark: int) -> bool:
        """Always."""
        return True

    def between_ns(self, first: int, second: int) -> int:
        """Their difference."""
        return second - first


def exclusive_ns(segments: Sequence[tuple[str, Any]], end: Any, clock: Clock) -> dict[str, int]:
    """Nanoseconds of each part, without what was spent in parts inside it.

    Args:
        segments: (part that begins or goes on, mark), in order; each lasts until the next mark.
        end: the mark that ends the last segment.
    """
    spent: dict[str, int] = {}
    borders = [mark for _, mark in segments[1:]] + [end]
    for (name, mark), border in zip(segments, borders, strict=True):
        spent[name] = spent.get(name, 0) + clock.between_ns(mark, border)
    return spent


@dataclass
class Iteration:
    """One iteration's marks, until they can be read."""

    facts: dict[str, Any]
    segments: list[tuple[str, Any]]
    previous: Any
    end: Any = None
    late_facts: Callable[[], dict[str, Any]] | None = None


@dataclass
class Recorder:
    """Takes the marks of iterations and writes a line for each once its marks can be read.

    Attributes:
        clock: what tells the time.
        write: receives the finished lines.
        open_range: makes a range that a profiler sees and returns what closes it, or None.
        is_open: whether an iteration is under way; parts outside of one are not marked.
    """

    clock: Clock
    write: Callable[[dict[str, Any]], None]
    open_range: Callable[[str], Callable[[], None] | None]
    is_open: bool = False
    _stack: list[tuple[str, Callable[[], None] | None]] = field(default_factory=list)
    _segments: list[tuple[str, Any]] = field(default_factory=list)
    _pending: deque[Iteration] = field(default_factory=deque)
    _previous: Any = None
    _counts: dict[str, int] = field(default_factory=dict)

    def begin(self, **facts: Any) -> None:
        """An iteration begins; `facts` go into its line."""
        self.flush()
        self.clock.start()
        self.is_open = True
        self._counts.clear()
        close = self.open_range(ITERATION)
        first = self.clock.mark()
        self._stack = [(OUTSIDE, close)]
        self._segments = [(OUTSIDE, first)]
        facts["monotonic_ns"] = time.monotonic_ns()
        self._pending.append(Iteration(facts, self._segments, self._previous))
        self._previous = first

    def end(self, late_facts: Callable[[], dict[str, Any]] | None = None) -> None:
        """The iteration ends; `late_facts` is called when its marks can be read."""
        iteration = self._pending[-1]
        iteration.end = self.clock.mark()
        iteration.late_facts = late_facts
        self._close()
        self.flush()

    def drop(self) -> None:
        """The iteration failed: no line of it, and the next one follows nothing."""
        self._pending.pop()
        self._close()
        self.interrupt()

    def interrupt(self) -> None:
        """Something else than a decode iteration ran: the next one follows nothing."""
        self._previous = None

    def enter(self, name: str, numbered: bool = False) -> None:
        """A part begins; `numbered` tells its calls within the iteration apart."""
        close = self.open_range(name)
        if numbered:
            count = self._counts[name] = self._counts.get(name, -1) + 1
            name = f"{name}.{count}"
        self._stack.append((name, close))
        self._segments.append((name, self.clock.mark()))

    def leave(self) -> None:
        """The innermost part ends, and the one around it goes on."""
        _, close = self._stack.pop()
        self._segments.append((self._stack[-1][0], self.clock.mark()))
        if close is not None:
            close()

    def inside(self, name: str) -> bool:
        """Whether a part of that name is under way."""
        return any(part == name for part, _ in self._stack)

    def flush(self) -> None:
        """Write the lines of all ended iterations whose marks can be read."""
        while self._pending and self._pending[0].end is not None:
            if not self.clock.ready(self._pending[0].end):
                return
            self.write(self._line(self._pending.popleft()))

    def _close(self) -> None:
        while self._stack:
            _, close = self._stack.pop()
            if close is not None:
                close()
        self.is_open = False

    def _line(self, iteration: Iteration) -> dict[str, Any]:
        first = iteration.segments[0][1]
        line = {
            **iteration.facts,
            "source": self.clock.source,
            "since_previous_ns": None
            if iteration.previous is None
            else self.clock.between_ns(iteration.previous, first),
            "worker_ns": self.clock.between_ns(first, iteration.end),
            "parts_ns": exclusive_ns(iteration.segments, iteration.end, self.clock),
        }
        return line | (iteration.late_facts() if iteration.late_facts is not None else {})
