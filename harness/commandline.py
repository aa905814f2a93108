"""How a command ends: an error is one sentence; Ctrl-C, SIGTERM or a reader that has left is no traceback."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from harness.errors import HarnessError
from harness.printable import printable

INTERRUPTED = 130
"""Exit status after Ctrl-C."""
_STOPPING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Terminated(SystemExit):
    """Somebody asked the process to end: SIGTERM, or SIGHUP of a terminal that was closed."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextlib.contextmanager
def terminable(numbers: Iterable[int] = _STOPPING) -> Iterator[None]:
    """A signal that would end the process at once raises `Terminated`, so that servers stop and locks go.

    Further ones are for what is being put right already, and are passed over. Only the main thread can ask
    for signals; elsewhere nothing changes.
    """
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not asked:
            asked.append(number)
            raise Terminated(number)

    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.signal(number, stop) for number in numbers}
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _deadly() -> list[int]:
    """Signals that would end this process; `nohup` and others may have seen to one."""
    return [number for number in _STOPPING if signal.getsignal(number) is signal.SIG_DFL]


def started(module: str) -> int:
    """Load a command's module and run its `main`; returns the exit status.

    For entry modules, which load nothing slow themselves.
    """
    with _loading():
        command: Callable[[], int] = importlib.import_module(module).main
    return guarded(command)


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """While modules load there is nothing to put right: Ctrl-C and the like end the process at once.

    As an exception it would come out of some import as a traceback, or a library would swallow it.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        _say("interrupted" if number == signal.SIGINT else _stopped(number), 0)
        os._exit(128 + number)

    numbers: list[int] = _deadly()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)  # else a shell's background job: Ctrl-C is not for it
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def guarded(command: Callable[[], int], failure: int = 2) -> int:
    """Run a command; returns its exit status.

    Args:
        failure: the status after an expected error; `INTERRUPTED` stands for Ctrl-C, 128 and more for others.
    """
    _open_closed_streams()
    try:
        with terminable(_deadly()):
            status = command()
        sys.stdout.flush()
        return status
    except HarnessError as error:
        return _say(f"error: {error}", failure)
    except BrokenPipeError:
        # The reader (head, less) has gone: nothing is wrong here.
        _discard_output()
        return 0
    except OSError as error:
        _discard_output()
        return _say(f"error: {os_error_text(error)}", failure)
    except KeyboardInterrupt:
        _discard_output()
        return _say("interrupted", INTERRUPTED)
    except Terminated as stop:
        _discard_output()
        return _say(_stopped(stop.number), 128 + stop.number)


def _stopped(number: int) -> str:
    return f"stopped by {signal.Signals(number).name}"


def _open_closed_streams() -> None:
    """Python has None for a stream that was closed when it started; nothing writes to that."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def place(text: str) -> Path:
    """A file or folder of a command line, as argparse's `type`: an empty one would be the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: name a file or folder, or leave the option out")
    return Path(text)


def os_error_text(error: OSError) -> str:
    """One sentence for what the system refused: where, why, and what to do."""
    where = f"{error.filename}: " if error.filename else ""
    advice = "shorten it" if error.errno == errno.ENAMETOOLONG else "free space, or name another place"
    return f"{where}{error.strerror or error}: {advice}"


def _say(text: str, status: int) -> int:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{printable(text)}\n")
    return status


def _discard_output() -> None:
    """Let the interpreter's last flush succeed, whatever stdout was."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
