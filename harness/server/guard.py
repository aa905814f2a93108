"""A small process between the harness and a server: when the harness goes, so does everything it started.

Run by path (`python -I guard.py --parent PID --alive-fd N -- command ...`), so it imports nothing of ours.
It survives a SIGKILL of the harness, notices it by the closed pipe and by its own changed parent, and kills
the server with all descendants: as their subreaper it inherits those that started a session of their own or
whose parent died. It ends as the server ended: same exit status, or the same signal.

SIGTERM asks the server to stop; a second one kills the whole tree at once.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

_POLL_S = 0.2
_CLEANUP_LIMIT_S = 30.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    """Linux only; elsewhere the pipe and the parent check have to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _die_with_guard() -> None:
    """In the server, before it is executed: a killed guard must not leave it behind."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def kill_descendants() -> None:
    """SIGKILL every descendant, again until none is left: new ones may be born meanwhile."""
    me = psutil.Process()
    for _ in range(100):
        alive = [p for p in me.children(recursive=True) if _is_running(p)]
        if not alive:
            return
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        _reap()
        time.sleep(0.02)


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _reap() -> None:
    """Collect adopted children; the server's own status is collected by `Popen.poll`."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == _server_pid:
            return
        os.waitpid(ended.si_pid, 0)


_server_pid = -1
_stop_requests = 0


def _on_stop(number: int, frame: object) -> None:
    global _stop_requests  # noqa: PLW0603  (signal handlers have no other way to tell the loop)
    _stop_requests += 1


def _watch(server: subprocess.Popen[bytes], parent: int, alive_fd: int) -> int:
    """Wait for the server to end, for a stop request or for the parent to go. Returns its exit status."""
    asked = 0
    while True:
        code = server.poll()
        if code is not None:
            return code
        if _stop_requests > asked:
            asked = _stop_requests
            if asked > 1:
                kill_descendants()
                return server.wait()
            with contextlib.suppress(ProcessLookupError):
                server.send_signal(signal.SIGTERM)
        if os.getppid() != parent or _pipe_closed(alive_fd):
            kill_descendants()
            return server.wait()
        _reap()


def _pipe_closed(alive_fd: int) -> bool:
    """Waits a moment; nothing is ever written, so readable means closed."""
    try:
        return bool(select.select([alive_fd], [], [], _POLL_S)[0])
    except InterruptedError:
        return False


def _end_like(code: int) -> None:
    """Leave with the server's exit status, or by the signal that ended it."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        time.sleep(1)
    os._exit(code & 0xFF)


def main(arguments: Sequence[str] | None = None) -> None:
    """Start the command after `--` and guard it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--alive-fd", type=int, required=True)
    parser.add_argument(
        "--cleanup", action="append", default=[], help="a word of a command to run at the end"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _on_stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != options.parent:
        os._exit(1)  # the harness went before the server was even started
    try:
        # preexec_fn is safe here: this process has one thread.
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_guard)  # noqa: PLW1509
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(127)
    global _server_pid  # noqa: PLW0603
    _server_pid = server.pid
    code = _watch(server, options.parent, options.alive_fd)
    kill_descendants()
    if options.cleanup:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                options.cleanup, check=False, timeout=_CLEANUP_LIMIT_S, capture_output=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
    _end_like(code)


if __name__ == "__main__":
    main()
