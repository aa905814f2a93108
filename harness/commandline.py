"""How a command ends: an error is one sentence; Ctrl-C or a reader that has left is no traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

from harness.errors import HarnessError


def guarded(command: Callable[[], int], failure: int = 2) -> int:
    """Run a command; returns its exit status.

    Args:
        failure: the status after an expected error; 130 stands for Ctrl-C.
    """
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
        place = f"{error.filename}: " if error.filename else ""
        return _say(f"error: {place}{error.strerror or error}: free space, or name another place", failure)
    except KeyboardInterrupt:
        _discard_output()
        return _say("interrupted", 130)


def _say(text: str, status: int) -> int:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
    return status


def _discard_output() -> None:
    """Let the interpreter's last flush succeed, whatever stdout was."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
