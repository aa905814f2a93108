"""How a command ends: an error is one sentence; Ctrl-C or a reader that has left is no traceback."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from harness.errors import HarnessError

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def started(module: str) -> int:
    """Load a command's module and run its `main`; returns the exit status.

    For entry modules, which load nothing slow themselves.
    """
    with _loading():
        command: Callable[[], int] = importlib.import_module(module).main
    return guarded(command)


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """While modules load there is nothing to put right: Ctrl-C ends the process at once.

    As an exception it would come out of some import as a traceback, or a library would swallow it.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        _say("interrupted", INTERRUPTED)
        os._exit(INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # a shell's background job: Ctrl-C is not for it
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def guarded(command: Callable[[], int], failure: int = 2) -> int:
    """Run a command; returns its exit status.

    Args:
        failure: the status after an expected error; `INTERRUPTED` stands for Ctrl-C.
    """
    _open_closed_streams()
    try:
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
        sys.stderr.write(f"{text}\n")
    return status


def _discard_output() -> None:
    """Let the interpreter's last flush succeed, whatever stdout was."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
