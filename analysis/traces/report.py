"""What `python -m analysis trace FILE` prints of one capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from analysis.traces.attribution import busy_by_range, place
from analysis.traces.iterations import Breakdown, break_down
from analysis.traces.model import Trace
from analysis.traces.stored import as_extras


def as_dict(trace: Trace, skipped: int) -> dict[str, Any]:
    """Everything as plain values: what the capture holds and lacks, ranges, kernels, phases."""
    found = break_down(trace, skipped)
    extras = as_extras(trace, found, len(found.kernels))
    return {
        "schema_version": trace.version,
        "kernel_ns": trace.kernel_ns,
        "ranges": {name: count for name, (count, _) in _ranges(trace).items()},
        "ranges_busy_ns": {name: busy for name, (_, busy) in _ranges(trace).items()},
        "ignored": trace.ignored,
        **extras,
    }


def _ranges(trace: Trace) -> dict[str, tuple[int, int | None]]:
    """Number and busy nanoseconds by range name, busiest first; None where launches cannot be told."""
    counts = Counter(range_.name for range_ in trace.ranges)
    busy = busy_by_range(place(trace)) if trace.attributable else {}
    ordered = sorted(counts, key=lambda name: (-busy.get(name, 0), name))
    return {name: (counts[name], busy.get(name, 0) if trace.attributable else None) for name in ordered}


def lines(trace: Trace, skipped: int, most: int) -> Iterator[str]:
    """The same for people to read; `most` ranges and kernels."""
    found = break_down(trace, skipped)
    version = f", export schema {trace.version}" if trace.version else ""
    yield f"{trace.source} capture{version}; attribution of kernels to ranges: {trace.attribution}"
    yield from (f"warning: {text}" for text in trace.warnings)
    yield from (f"missing: {text}" for text in trace.missing)
    yield from (f"left out: {count} x {what}" for what, count in trace.ignored.items())
    yield f"kernel time in all: {_ms(trace.kernel_ns / 1e3)}"
    yield from _range_lines(trace, most)
    yield from _phase_lines(found)
    yield from _kernel_lines(found, most)


def _range_lines(trace: Trace, most: int) -> Iterator[str]:
    ranges = _ranges(trace)
    if not ranges:
        return
    yield ""
    yield "ranges: how many, and the busy time launched inside them, inner ranges included"
    for name, (count, busy) in list(ranges.items())[:most]:
        yield f"{count:10} x {'cannot be told' if busy is None else _ms(busy / 1e3):>17}  {name}"


def _phase_lines(found: Breakdown) -> Iterator[str]:
    yield ""
    if not found.iterations:
        yield "no marked iterations: the times below are of the whole capture"
        return
    yield f"{found.iterations} marked iterations; means of one"
    if found.wall is not None:
        yield f"  {found.wall.iteration_ms:14,.4f} ms  wall time of an iteration, of it"
        for phase, value in sorted(found.wall.phases_ms().items(), key=lambda item: -item[1]):
            yield f"  {value:14,.4f} ms  {phase}"
    yield f"  {_ms(found.total_us)}  busy, of it"
    for phase, value in sorted(found.busy_us.items(), key=lambda item: -item[1]):
        yield f"  {_ms(value)}  {phase}"


def _kernel_lines(found: Breakdown, most: int) -> Iterator[str]:
    if not found.kernels:
        return
    yield ""
    yield "     calls             ms  phase         class             kernel"
    for kernel in found.kernels[:most]:
        numbers = f"{kernel.calls:10.2f} {kernel.us / 1e3:14,.4f}"
        yield f"{numbers}  {kernel.phase:12}  {kernel.kind:16}  {kernel.name}"
    rest = found.kernels[most:]
    if rest:
        total = sum(kernel.us for kernel in rest)
        yield f"{sum(kernel.calls for kernel in rest):10.2f} {total / 1e3:14,.4f}  {len(rest)} more kernels"
    if not found.total_us:
        return
    yield f"{100 * found.unranged_us / found.total_us:.1f} % of the busy time was launched in no range"
    if found.iterations:
        share = 100 * found.unattributed_us / found.total_us
        yield f"{share:.1f} % of the busy time belongs to no part of an iteration"


def _ms(us: float) -> str:
    return f"{us / 1e3:14,.4f} ms"
