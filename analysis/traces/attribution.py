"""Which range each piece of work was launched in, and what that says of iterations, phases and kernels.

Work counts for the range that was open on its thread when it was launched, not for what the host was at while
it ran: kernels run after their launch, and often after the range has closed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from analysis.traces.model import Range, Trace, Work


@dataclass(frozen=True)
class Placed:
    """A piece of work and the ranges that it was launched in, outermost first."""

    work: Work
    ranges: tuple[Range, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, outermost first."""
        return tuple(range_.name for range_ in self.ranges)


def place(trace: Trace) -> list[Placed]:
    """Every piece of work with its ranges, in order of its start; no ranges where its launch is unknown."""
    by_thread: dict[tuple[int, int], list[Range]] = defaultdict(list)
    by_process: dict[int, list[Range]] = defaultdict(list)
    for range_ in trace.ranges:
        if range_.thread is None:
            by_process[range_.process].append(range_)
        else:
            by_thread[range_.process, range_.thread].append(range_)
    launched: dict[tuple[int, int], list[Work]] = defaultdict(list)
    placed: list[Placed] = []
    for work in trace.work:
        if work.launch is None or not trace.attributable:
            placed.append(Placed(work, ()))
        else:
            launched[work.launch.process, work.launch.thread].append(work)
    for (process, thread), works in launched.items():
        placed += _place_thread(works, by_thread[process, thread] + by_process[process])
    return sorted(placed, key=lambda one: (one.work.start_ns, one.work.end_ns))


def _place_thread(works: Sequence[Work], ranges: Sequence[Range]) -> Iterable[Placed]:
    """Sweep over one thread's launches; a range holds its start but not its end."""
    coming = sorted(ranges, key=lambda r: (r.start_ns, -r.end_ns))
    number = 0
    active: list[Range] = []
    for work in sorted(works, key=lambda w: w.launch.at_ns if w.launch else 0):
        at_ns = work.launch.at_ns if work.launch else 0
        while number < len(coming) and coming[number].start_ns <= at_ns:
            active.append(coming[number])
            number += 1
        active = [range_ for range_ in active if range_.end_ns > at_ns]
        yield Placed(work, tuple(active))


def union_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Length of the union of intervals: what runs at the same time counts once."""
    total, until = 0, None
    for start, end in sorted(spans):
        if until is None or start > until:
            total += end - start
            until = end
        elif end > until:
            total += end - until
            until = end
    return total


def busy_ns(works: Iterable[Work]) -> int:
    """Time in which a device was busy, summed over devices."""
    ordered = sorted(works, key=attrgetter("device"))
    return sum(
        union_ns((work.start_ns, work.end_ns) for work in group)
        for _, group in groupby(ordered, key=attrgetter("device"))
    )


def busy_by_range(placed: Iterable[Placed]) -> dict[str, int]:
    """Busy nanoseconds of the work launched inside each range name, inner ranges included."""
    inside: dict[str, list[Work]] = defaultdict(list)
    for one in placed:
        for name in dict.fromkeys(one.names):
            inside[name].append(one.work)
    return {name: busy_ns(works) for name, works in inside.items()}
