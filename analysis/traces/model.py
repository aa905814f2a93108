"""What all traces have in common: named ranges on threads, work on devices, and the launch of each piece.

Times are nanoseconds of the trace's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["kernel", "memcpy", "memset", "graph", "operator"]


@dataclass(frozen=True)
class Range:
    """A named span of a thread; `thread` None covers every thread of the process."""

    name: str
    start_ns: int
    end_ns: int
    process: int
    thread: int | None


@dataclass(frozen=True)
class Launch:
    """Where on the host a piece of work was launched."""

    at_ns: int
    process: int
    thread: int


@dataclass(frozen=True)
class Work:
    """Something a device was busy with: a kernel, a copy, a whole CUDA graph; on a CPU an operator.

    `detail` is the full name with its template arguments, where the trace has one. `launch` is None where
    the trace does not tell it. `in_graph`: its launch is that of a CUDA graph.
    """

    name: str
    kind: Kind
    start_ns: int
    end_ns: int
    device: int
    launch: Launch | None = None
    in_graph: bool = False
    detail: str = ""

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


@dataclass
class Trace:
    """One capture.

    Attributes:
        source: nsys | torch.
        version: of the export's schema; empty where the capture does not say.
        attribution: `by launch`, or `unavailable:` and why work cannot be told apart by range.
        missing: tables, columns and other things that this capture lacks, by name.
        ignored: records left out on purpose, by kind, with their number.
        warnings: what a reader should know before believing the numbers.
    """

    source: str
    version: str = ""
    ranges: list[Range] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    attribution: str = "by launch"
    missing: list[str] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def attributable(self) -> bool:
        """Whether work can be told apart by the range that launched it."""
        return not self.attribution.startswith("unavailable")

    @property
    def has_nvtx(self) -> bool:
        """Whether the capture holds ranges."""
        return bool(self.ranges)

    @property
    def kernel_ns(self) -> int:
        """Summed time of all kernels (operators on a CPU), copies left out; overlaps count twice."""
        return sum(work.ns for work in self.work if work.kind in ("kernel", "graph", "operator"))

    def ignore(self, what: str, count: int = 1) -> None:
        """Count records that are left out."""
        if count:
            self.ignored[what] = self.ignored.get(what, 0) + count
