"""Live view: a rich status line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

from harness import schedlog
from harness.points import Point
from harness.printable import printable
from harness.records import Outcome, Record, ServerInfo
from harness.server.spec import ServerSpec

_PLAIN_EVERY_S = 5.0


@dataclass(frozen=True)
class Course:
    """The study that a view shows a part of.

    Attributes:
        total_points: points that the study measures, in this process and others.
        done: how many of them have a record by now.
        boots: what each server start is called, with its place among all, by the key of its spec.
        points: what each point is called, by its key.
    """

    total_points: int
    done: Callable[[], int]
    boots: Mapping[str, str]
    points: Mapping[str, str]


class ProgressView:
    """Shows the boot, the phase, prefill progress, decode speed and an estimate of what is left.

    Args:
        course: the whole study, of which this process may measure a part.
        console: where to write.
    """

    def __init__(self, course: Course, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._live = self.console.is_terminal
        self._course = course
        self._done = 0
        self._here = 0
        self._began = time.monotonic()
        self._point: Point | None = None
        self._phase = ""
        self._prefilled = 0
        self._decoded = 0.0
        self._last_plain = 0.0
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._boot = ""

    # -- events of a boot -----------------------------------------------------------------------------

    def boot_starts(self, spec: ServerSpec, points: Sequence[Point]) -> None:
        """A server is about to start."""
        self._boot = self._course.boots.get(spec.key, spec.label)
        self._point = None
        noun = "point" if len(points) == 1 else "points"
        self.say(f"{self._boot}: loading ({len(points)} {noun} on it)")
        self._status("loading the model")

    def boot_ready(self, info: ServerInfo) -> None:
        """The server answers."""
        pools = ", ".join(f"{p.role} KV {p.tokens:,} tokens" for p in info.pools if p.tokens)
        self.say(f"{self._boot}: ready after {info.startup_s:.0f} s ({pools})")

    def phase(self, name: str, point: Point | None = None) -> None:
        """A point enters a phase: input, warm-up, prefill."""
        if point is not None and (self._point is None or point.key != self._point.key):
            self._point = point
        self._phase = name
        self._prefilled, self._decoded = 0, 0.0
        self._status(name)

    def log_event(self, event: schedlog.Event) -> None:
        """A line of the scheduler's log."""
        if self._point is None or self._phase != "prefill":
            return
        total = self._point.batch * self._point.context_tokens
        if isinstance(event, schedlog.PrefillLine):
            self._prefilled += event.new_tokens
            share = min(1.0, self._prefilled / total)
            self._status(f"prefill {self._prefilled:,} / {total:,} tokens ({share:.0%})")
        elif isinstance(event, schedlog.DecodeLine):
            length = event.accept_length or 1.0
            self._decoded += length * event.running_requests
            self._status(
                f"decode {self._decoded:.0f} tokens, accept length {length:.2f}, "
                f"{event.throughput_tokens_per_s:.0f} tok/s"
            )

    def point_done(self, record: Record) -> None:
        """A record was stored."""
        self._here += 1
        total, self._done = self._course.total_points, self._course.done()
        left = ""
        if self._done < total:
            rate_s = (time.monotonic() - self._began) / self._here
            left = f", about {_minutes(rate_s * (total - self._done))} left"
        text = f"[{self._done}/{total}] {self._name(record.point)}: {record.outcome}"
        if record.outcome is Outcome.OK:
            tokens = sum(r.completion_tokens for r in record.requests)
            text += f", {tokens} tokens in {record.duration_s or 0:.1f} s"
        else:
            text += f" - {record.reason}"
        self.say(text + left)

    # -- output ---------------------------------------------------------------------------------------

    def __enter__(self) -> ProgressView:
        if self._live:
            # The text gives way where a terminal is narrow, the bar and the counts stay.
            text = Column(ratio=1, no_wrap=True, overflow="ellipsis")
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", table_column=text, markup=False),
                BarColumn(12),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=self.console, transient=True, expand=True)
            self._progress.start()
            self._done = self._course.done()
            self._task = self._progress.add_task(
                "starting", total=self._course.total_points, completed=self._done
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._done)

    def _status(self, text: str) -> None:
        label = self._name(self._point) if self._point is not None else self._boot
        if self._progress is not None and self._task is not None:
            # What moves stands first: a narrow terminal cuts the end.
            self._progress.update(self._task, description=printable(f"{text} | {label}"))
        elif time.monotonic() - self._last_plain > _PLAIN_EVERY_S:
            self._last_plain = time.monotonic()
            self.console.print(printable(f"  {label}: {text}"), highlight=False, markup=False, soft_wrap=True)

    def _name(self, point: Point) -> str:
        return self._course.points.get(point.key, point.label)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
