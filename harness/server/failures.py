"""Why a server failed: the first cause that its log names, typed, with what to do about it.

A dying server says most things twice: the process that failed writes the cause, its parent and the other
ranks then write that something else failed ("Received sigquit from a child process"). Those messengers are
never the cause. Looked for, in this order: a known cause or the traceback of a failed scheduler, whichever
comes first in the log; a process killed from outside; any other traceback; and only then the exit status.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from harness.records import Outcome
from harness.server.failure_patterns import (
    KILLED,
    MESSENGER,
    PREFIX,
    SECONDARY,
    Cause,
    known_cause,
    minimum_fraction,
)  # fmt: skip

Phase = Literal["start", "run"]
_CAUSE_CHARACTERS = 500
_TRACEBACK = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*|:?$)")
_FRAME = re.compile(r'  File "|    (?!\s*[|+])')
_FAILED_PROCESS = re.compile(r"hit an exception: ?Traceback")
# Tracebacks that a server writes and survives.
_HARMLESS_BEFORE = re.compile(r"ASGI application|[Ii]gnor(e|ing)|will be retried|[Ff]all(ing)? back")


@dataclass(frozen=True)
class Failure:
    """Why a server failed.

    Attributes:
        kind: outcome of the points that needed the server.
        name: the cause in one word, such as `kv_pool_no_room`.
        cause: the line that names it, ended like a sentence.
        advice: what to do, one sentence.
        minimum_fraction: smallest `mem_fraction_static` that the log says would start; None elsewhere.
    """

    kind: Outcome
    name: str
    cause: str
    advice: str
    minimum_fraction: float | None = None


def classify(log_tail: str, exit_code: int | None, phase: Phase) -> Failure:
    """The first cause in a failed server's log.

    Args:
        log_tail: the end of its log, long enough to hold the cause; a whole log is fine.
        exit_code: exit status, negative for a signal; None where the server still runs.
        phase: whether it was starting or serving, which turns some advice round.
    """
    lines = [line.rstrip() for line in log_tail.splitlines()]
    groups = [group for group in _tracebacks(lines) if not group.is_harmless]
    harmless = {i for g in _tracebacks(lines) if g.is_harmless for i in range(g.first_line, g.last_line + 1)}
    known = _first_known(lines, phase, harmless)
    failed = next((g for g in groups if g.in_failed_process and not g.is_secondary), None)
    if known is not None and (failed is None or known[0] <= failed.last_line):
        return _failure(known[1], lines[known[0]])
    if failed is not None:
        return _from_traceback(failed)
    return (
        _killed(lines, exit_code) or _any_traceback(groups) or _messenger(lines) or _by_exit_status(exit_code)
    )


def _killed(lines: Sequence[str], exit_code: int | None) -> Failure | None:
    for line in lines:
        if KILLED.search(line):
            return _failure(_KILLED_CAUSE, line)
    if exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return _failure(_KILLED_CAUSE, f"the server was ended by SIGKILL (exit status {exit_code})")
    return None


def _any_traceback(groups: Sequence[_TracebackGroup]) -> Failure | None:
    """The first traceback of its own, else the first that follows from something else."""
    own = [group for group in groups if not group.is_secondary]
    following = [group for group in groups if not group.is_messenger]
    return next((_from_traceback(group) for group in own + following), None)


def _messenger(lines: Sequence[str]) -> Failure | None:
    return next((_failure(_UNKNOWN_CHILD, line) for line in lines if MESSENGER.search(line)), None)


_LOOK_UP = "The log does not name the cause near its end: search further up in the server's log."
_KILLED_CAUSE = Cause(
    "host_oom_or_killed",
    Outcome.SERVER_DIED,
    "Something outside killed a process of the server, most often the kernel for want of host memory: check "
    "`dmesg -T | grep -i oom`, the memory limit of the job or container, and /dev/shm.",
)
_UNKNOWN_CHILD = Cause("unknown_child_failure", Outcome.SERVER_DIED, _LOOK_UP)


def _by_exit_status(exit_code: int | None) -> Failure:
    if exit_code is None:
        text = "the server failed and its process still runs"
        return Failure(Outcome.SERVER_DIED, "unknown", _sentence(text), _LOOK_UP)
    if exit_code == 0:
        text, name = "the server ended by itself (exit status 0)", "ended"
    elif exit_code < 0 or exit_code > 128:
        number = -exit_code if exit_code < 0 else exit_code - 128
        name = "signal"
        try:
            text = f"the server was ended by {signal.Signals(number).name} (exit status {exit_code})"
        except ValueError:
            text = f"the server ended with exit status {exit_code}"
    else:
        text, name = f"the server ended with exit status {exit_code}", "exit_status"
    return Failure(Outcome.SERVER_DIED, name, _sentence(text), _LOOK_UP)


def _first_known(lines: Sequence[str], phase: Phase, harmless: Set[int]) -> tuple[int, Cause] | None:
    """Index of the first line outside `harmless` that names a known cause, and the cause."""
    pool_made = in_frames = False
    for index, line in enumerate(lines):
        # Source text between a traceback's head and its exception names errors that did not happen.
        in_frames = _TRACEBACK in line or (in_frames and (line[:1].isspace() or bool(PREFIX.match(line))))
        if in_frames and _FRAME.match(line):
            continue
        pool_made = pool_made or "KV Cache is allocated" in line
        if index in harmless or "server_args=ServerArgs(" in line:  # the latter lists every option by name
            continue
        cause = known_cause(line, phase, pool_made)
        if cause is not None:
            return index, cause
    return None


def _failure(cause: Cause, line: str) -> Failure:
    text = PREFIX.sub("", line).strip()
    fraction = minimum_fraction(line)
    return Failure(cause.kind, cause.name, _sentence(text), cause.advice_for(fraction), fraction)


def _from_traceback(group: _TracebackGroup) -> Failure:
    first, last = group.exceptions[0], group.exceptions[-1]
    text = last if first == last else f"{last} (caused by {first})"
    advice = "The traceback in the server's log shows where; fix that argument, file or package."
    return Failure(Outcome.SERVER_DIED, "exception", _sentence(text), advice)


def _sentence(text: str) -> str:
    text = text.strip()
    if len(text) > _CAUSE_CHARACTERS:
        text = text[:_CAUSE_CHARACTERS] + "..."
    return text if text.endswith((".", "!", "?")) else text + "."


@dataclass(frozen=True)
class _TracebackGroup:
    """Tracebacks chained by "During handling of" or "direct cause", with their exception lines in order."""

    first_line: int
    last_line: int
    exceptions: tuple[str, ...]
    in_failed_process: bool
    is_harmless: bool

    @property
    def is_messenger(self) -> bool:
        """Every exception only says that another process failed."""
        return all(MESSENGER.search(text) for text in self.exceptions)

    @property
    def is_secondary(self) -> bool:
        """The exceptions follow from a failure elsewhere, such as a closed connection."""
        return all(SECONDARY.search(text) or MESSENGER.search(text) for text in self.exceptions)


def _tracebacks(lines: Sequence[str]) -> Iterator[_TracebackGroup]:
    index = 0
    while index < len(lines):
        if _TRACEBACK not in lines[index]:
            index += 1
            continue
        start = index
        exceptions: list[str] = []
        while True:
            end = _exception_line(lines, index + 1)
            if end is None:
                index += 1
                break
            exceptions.append(lines[end].strip())
            index = end
            following = _chained(lines, end)
            if following is None:
                break
            index = following
        if exceptions:
            before = " ".join(lines[max(0, start - 2) : start + 1])
            yield _TracebackGroup(
                first_line=start,
                last_line=index,
                exceptions=tuple(exceptions),
                in_failed_process=_FAILED_PROCESS.search(lines[start]) is not None,
                is_harmless=_HARMLESS_BEFORE.search(before) is not None,
            )
        index += 1


def _exception_line(lines: Sequence[str], start: int) -> int | None:
    """The first line after a traceback's frames; lines of other ranks in between are passed over."""
    for index in range(start, min(start + 400, len(lines))):
        line = lines[index]
        if _TRACEBACK in line:
            return None
        if not line or line[0].isspace() or PREFIX.match(line):
            continue
        if _EXCEPTION.match(line):
            return index
    return None


def _chained(lines: Sequence[str], end: int) -> int | None:
    """Where the next traceback of the chain begins; exception texts may run over several lines."""
    joined = False
    for index in range(end + 1, min(end + 40, len(lines))):
        line = lines[index]
        if line.startswith(_CHAIN):
            joined = True
        elif line.startswith(_TRACEBACK):
            return index if joined else None
        elif PREFIX.match(line):
            return None
    return None
