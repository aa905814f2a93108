"""Tables 7 and 8 from a trace: wall time of the phases of a decode iteration, and the kernels it ran.

Wall time of a phase on a GPU is the time by which its work moved the device on: each piece counts from the
end of everything before it to its own end, so that idle time belongs to the phase whose launch it waited for,
and the phases add up to the iteration. On a CPU the ranges themselves are the wall time. Kernel times are
time busy, without idle, and so come to less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from analysis.traces.attribution import Placed, busy_ns, place
from analysis.traces.classes import class_of
from analysis.traces.model import Range, Trace
from harness.phases import ITERATION, OVERHEAD, RANGE_PREFIX, UNATTRIBUTED, VERIFY, base_part, phase_of

_ITERATION = RANGE_PREFIX + ITERATION
OUTSIDE = "outside"
"""Work that no iteration launched: the scheduler's, or another thread's."""


@dataclass(frozen=True)
class KernelTime:
    """One kernel or operator of one phase, an iteration's mean."""

    name: str
    kind: str
    phase: str
    calls: float
    us: float


@dataclass(frozen=True)
class WallTime:
    """Mean wall time of one iteration and of its parts, in milliseconds; the parts add up to it."""

    iterations: int
    iteration_ms: float
    parts_ms: dict[str, float]

    def phases_ms(self) -> dict[str, float]:
        """Wall time by phase, `unattributed` among them."""
        found: dict[str, float] = defaultdict(float)
        for name, value in self.parts_ms.items():
            found[phase_of(name)] += value
        return dict(found)


@dataclass
class Breakdown:
    """What a trace says of its iterations.

    Attributes:
        iterations: marked iterations, of all processes; 0 where none were marked.
        kernels: largest first, microseconds an iteration (of the whole capture where `iterations` is 0).
        busy_us: time busy an iteration, by phase: overlaps count once.
        unattributed_us: time busy an iteration of work that no part of an iteration launched.
        unranged_us: of work that was launched in no range of any name.
        wall: None where fewer than two iterations follow each other.
    """

    source: str
    iterations: int
    kernels: list[KernelTime] = field(default_factory=list)
    busy_us: dict[str, float] = field(default_factory=dict)
    unattributed_us: float = 0.0
    unranged_us: float = 0.0
    total_us: float = 0.0
    wall: WallTime | None = None


def break_down(trace: Trace, skipped: int = 0) -> Breakdown:
    """Kernels, busy times and wall times of a trace's iterations.

    Args:
        skipped: iterations of each process that are left out first, as far as others follow them.
    """
    iterations = _steady(trace, skipped)
    found = Breakdown(trace.source, len(iterations))
    # Of a capture with marks only what ran from the first marked iteration on counts.
    placed = place(trace)
    if iterations and trace.attributable:
        began = min(range_.start_ns for range_ in iterations)
        placed = [one for one in placed if one.work.launch is None or one.work.launch.at_ns >= began]
    share = 1e3 * max(1, len(iterations))
    by_phase: dict[str, list[Placed]] = defaultdict(list)
    for one in placed:
        by_phase[_phase(_part(one))].append(one)
    found.busy_us = {phase: busy_ns(one.work for one in ones) / share for phase, ones in by_phase.items()}
    found.total_us = busy_ns(one.work for one in placed) / share
    found.unranged_us = busy_ns(one.work for one in placed if not one.ranges) / share
    found.unattributed_us = found.busy_us.get("other", 0.0)
    found.kernels = _kernels(placed, share)
    operators = any(one.work.kind == "operator" for one in placed)
    found.wall = _wall_of_ranges(trace, iterations) if operators else _wall_of_device(placed)
    return found


def _steady(trace: Trace, skipped: int) -> list[Range]:
    """The marked iterations that count."""
    by_process: dict[int, list[Range]] = defaultdict(list)
    for range_ in trace.ranges:
        if range_.name == _ITERATION:
            by_process[range_.process].append(range_)
    kept: list[Range] = []
    for ranges in by_process.values():
        ranges.sort(key=lambda r: r.start_ns)
        kept += ranges[skipped:] or ranges[-1:]
    return kept


def _part(one: Placed) -> str:
    """The innermost part of an iteration that launched a piece of work."""
    names = [name for name in one.names if name.startswith(RANGE_PREFIX)]
    if not names:
        return OUTSIDE
    part = names[-1].removeprefix(RANGE_PREFIX)
    return UNATTRIBUTED if part == ITERATION else part


def _phase(part: str) -> str:
    """Phase of a kernel as records name it: draft | draft_extend | verify | overhead | other."""
    if part.startswith("draft_extend"):
        return "draft_extend"
    return {VERIFY: "verify", OVERHEAD: "overhead", UNATTRIBUTED: "other"}.get(phase_of(part), "draft")


def _kernels(placed: Sequence[Placed], share: float) -> list[KernelTime]:
    counts: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for one in placed:
        part, work = _part(one), one.work
        cell = counts[work.name, class_of(work.name, part, work.detail), _phase(part)]
        cell[0] += 1
        cell[1] += work.ns
    iterations = share / 1e3
    made = [
        KernelTime(name, kind, phase, calls / iterations, ns / share)
        for (name, kind, phase), (calls, ns) in counts.items()
    ]
    return sorted(made, key=lambda kernel: (-kernel.us, kernel.name, kernel.phase))


def _wall_of_device(placed: Sequence[Placed]) -> WallTime | None:
    """Each piece of work counts for the time by which it moved its device on."""
    spent: dict[str, int] = defaultdict(int)
    whole = 0
    by_device = sorted(placed, key=lambda one: (one.work.device, one.work.end_ns))
    for _, ones in groupby(by_device, key=lambda one: one.work.device):
        whole += _advance(list(ones), spent)
    return _mean(whole, spent)


def _advance(placed: Sequence[Placed], spent: dict[str, int]) -> int:
    """Add one device's time by part after its first iteration; returns how many iterations those were.

    Where the first one began is unknown: it may have waited for anything before the capture.
    """
    owners = [_iteration_of(one) for one in placed]
    first = next((owner for owner in owners if owner is not None), None)
    if first is None:
        return 0
    done = max(number for number, owner in enumerate(owners) if owner == first) + 1
    until = max(one.work.end_ns for one in placed[:done])
    for one in placed[done:]:
        end = one.work.end_ns
        if end > until:
            part = _part(one)
            spent[UNATTRIBUTED if part == OUTSIDE else part] += end - until
            until = end
    return len({owner for owner in owners if owner is not None}) - 1


def _iteration_of(one: Placed) -> Range | None:
    return next((range_ for range_ in one.ranges if range_.name == _ITERATION), None)


def _wall_of_ranges(trace: Trace, iterations: Sequence[Range]) -> WallTime | None:
    """The ranges' own time without the ranges inside them; an iteration lasts until the next one begins."""
    spent: dict[str, int] = defaultdict(int)
    whole = 0
    ordered = sorted(iterations, key=lambda r: (r.process, r.thread or 0, r.start_ns))
    for (process, thread), ones in groupby(ordered, key=lambda r: (r.process, r.thread)):
        marked = sorted(
            (r for r in trace.ranges
             if r.name.startswith(RANGE_PREFIX) and (r.process, r.thread) == (process, thread)),
            key=lambda r: (r.start_ns, -r.end_ns),
        )  # fmt: skip
        for this, following in pairwise(ones):
            whole += 1
            inside = [r for r in marked if this.start_ns <= r.start_ns < this.end_ns]
            for name, value in exclusive(inside).items():
                spent[UNATTRIBUTED if name == ITERATION else name] += value
            spent["scheduler"] += following.start_ns - this.end_ns
    return _mean(whole, spent)


def exclusive(ranges: Sequence[Range]) -> dict[str, int]:
    """Nanoseconds of each range name without the ranges inside, for nested ranges in order of their start."""
    spent: dict[str, int] = defaultdict(int)
    stack: list[Range] = []
    for range_ in ranges:
        while stack and stack[-1].end_ns <= range_.start_ns:
            stack.pop()
        length = range_.end_ns - range_.start_ns
        spent[range_.name.removeprefix(RANGE_PREFIX)] += length
        if stack:
            spent[stack[-1].name.removeprefix(RANGE_PREFIX)] -= length
        stack.append(range_)
    return dict(spent)


def _mean(iterations: int, spent: dict[str, int]) -> WallTime | None:
    if iterations < 1:
        return None
    parts: dict[str, float] = defaultdict(float)
    for name, value in spent.items():
        parts[base_part(name)] += value / iterations / 1e6
    return WallTime(iterations, sum(parts.values()), dict(sorted(parts.items())))
