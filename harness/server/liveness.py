"""Whether a server lives, judged by what its scheduler does and never by /health alone.

During a long prefill /health answers 503 while the scheduler makes progress, and it has been seen to answer
200 while the scheduler hung. So only scheduler lines and replies count as progress; a healthy answer buys a
silent server some more time, an unhealthy one takes none away.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """State of a server."""

    ALIVE = "alive"
    STALLED = "stalled"
    DEAD = "dead"


@dataclass(frozen=True)
class Limits:
    """How long a server may be silent, in seconds.

    Attributes:
        start_s: from launch to ready, whatever is logged: weights load and kernels compile.
        stall_s: without a scheduler line or reply while a request is in flight. One chunk of a prefill must
            fit, not the whole prefill: each chunk writes a line.
        healthy_factor: how much longer where /health answered well since the last progress.
        stopped_s: how long a process may be in the stopped state (a debugger stops it for moments).
    """

    start_s: float = 3600.0
    stall_s: float = 900.0
    healthy_factor: float = 2.0
    stopped_s: float = 60.0

    def __post_init__(self) -> None:
        if min(self.start_s, self.stall_s, self.stopped_s) <= 0 or self.healthy_factor < 1:
            raise ValueError("limits must be positive and healthy_factor at least 1")


@dataclass(frozen=True)
class Judgement:
    """A verdict and the sentence that explains it; `silent_s` is the age of the last progress."""

    verdict: Verdict
    reason: str
    silent_s: float


class Liveness:
    """State machine fed with what is observed; times are seconds of one monotonic clock.

    Args:
        launched_s: when the server was launched.
    """

    def __init__(self, launched_s: float, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._launched_s = launched_s
        self._progress_s = launched_s
        self._ready = False
        self._in_flight = 0
        self._healthy_s: float | None = None
        self._stopped_since_s: float | None = None
        self._death: str | None = None

    def ready(self, time_s: float) -> None:
        """The server said that it accepts requests."""
        self._ready = True
        self._advance(time_s)

    def scheduler_line(self, time_s: float) -> None:
        """A scheduler line (prefill or decode) was read from the log."""
        self._advance(time_s)

    def request_sent(self, time_s: float, count: int = 1) -> None:
        """Requests went out: the clock of silence starts now."""
        self._in_flight += count
        self._advance(time_s)

    def request_done(self, time_s: float, count: int = 1) -> None:
        """Replies or errors came back."""
        self._in_flight = max(0, self._in_flight - count)
        self._advance(time_s)

    def health(self, time_s: float, ok: bool) -> None:
        """/health answered; a refusal or no answer is `ok=False` and changes nothing."""
        if ok:
            self._healthy_s = time_s

    def process_state(self, time_s: float, state: str) -> None:
        """State of the server or one of its schedulers: `running`, `stopped`, `zombie` or `gone`.

        Anything else (sleeping, disk-sleep, ...) counts as running.
        """
        if state in {"zombie", "gone", "dead"}:
            self.exited(time_s, None)
        elif state in {"stopped", "tracing-stop"}:
            if self._stopped_since_s is None:
                self._stopped_since_s = time_s
        else:
            self._stopped_since_s = None

    def exited(self, time_s: float, exit_code: int | None) -> None:
        """The server process, or a scheduler under it, has ended."""
        if self._death is None:
            status = "" if exit_code is None else f" with exit status {exit_code}"
            self._death = f"a server process ended{status} {time_s - self._launched_s:.0f} s after the launch"

    def judge(self, now_s: float) -> Judgement:
        """The verdict at `now_s`."""
        silent_s = max(0.0, now_s - self._progress_s)
        if self._death is not None:
            return Judgement(Verdict.DEAD, self._death, silent_s)
        if self._stopped_since_s is not None and now_s - self._stopped_since_s > self._limits.stopped_s:
            stopped_s = now_s - self._stopped_since_s
            return Judgement(
                Verdict.STALLED, f"a server process is stopped since {stopped_s:.0f} s", silent_s
            )
        return self._judge_progress(now_s, silent_s)

    def _judge_progress(self, now_s: float, silent_s: float) -> Judgement:
        if not self._ready:
            waited_s = now_s - self._launched_s
            if waited_s > self._limits.start_s:
                return Judgement(Verdict.STALLED, f"not ready {waited_s:.0f} s after its launch", silent_s)
            return Judgement(Verdict.ALIVE, f"starting since {waited_s:.0f} s", silent_s)
        if self._in_flight == 0:
            return Judgement(Verdict.ALIVE, "idle", silent_s)  # an idle server writes nothing
        healthy = self._healthy_s is not None and self._healthy_s > self._progress_s
        limit_s = self._limits.stall_s * (self._limits.healthy_factor if healthy else 1.0)
        if silent_s > limit_s:
            reason = (
                f"no scheduler line or reply for {silent_s:.0f} s (limit {limit_s:.0f} s) with "
                f"{self._in_flight} request(s) in flight"
            )
            return Judgement(Verdict.STALLED, reason, silent_s)
        return Judgement(Verdict.ALIVE, f"last progress {silent_s:.0f} s ago", silent_s)

    def _advance(self, time_s: float) -> None:
        self._progress_s = max(self._progress_s, time_s)
