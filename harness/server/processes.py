"""Processes and ports of servers: started guarded, stopped with all that they started, and nothing else.

Ours is what a guard is the ancestor of, or what carries a boot's mark in its environment. Process names are
never looked at, and a process is always identified by its id and its creation time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.errors import ServerError
from harness.records import Outcome

_GUARD = Path(__file__).with_name("guard.py")
# Process titles must not be written over the environment, where a boot's mark is looked for.
KEEP_MARKS = {"SPT_NOENV": "1"}
_POLL_S = 0.05
_KILL_WAIT_S = 15.0
# Below Linux's ephemeral range (32768 and up), where any outgoing connection may take a port between the
# moment it is found free and the moment the server binds it.
_PORT_RANGE = range(20000, 32000)


@dataclass
class Guarded:
    """A server's guard. While `alive_fd` is open the guard knows that the harness lives."""

    process: subprocess.Popen[bytes]
    alive_fd: int

    @property
    def pid(self) -> int:
        """Process id of the guard, which is also the id of its session and process group."""
        return self.process.pid

    def poll(self) -> int | None:
        """None while the server lives, else its exit status (negative: the signal that ended it)."""
        return self.process.poll()

    def close(self) -> None:
        """Let go of the pipe; a guard that still lives then ends its server."""
        if self.alive_fd >= 0:
            os.close(self.alive_fd)
            self.alive_fd = -1


def spawn_guarded(
    command: Sequence[str],
    environment: Mapping[str, str],
    log_path: Path,
    cleanup: Sequence[str] = (),
) -> Guarded:
    """Start a command in a session of its own under a guard; its output goes to `log_path`.

    Args:
        environment: the whole environment of the command, a boot's mark included.
        cleanup: a command the guard runs after the end, whatever the end was; for what is no descendant,
            such as a container of the Docker daemon.

    Raises:
        ServerError: the log cannot be written or the guard not be started.
    """
    alive_read, alive_write = os.pipe()
    guard = [sys.executable, "-I", str(_GUARD), "--parent", str(os.getpid()), "--alive-fd", str(alive_read)]
    for word in cleanup:
        guard.append(f"--cleanup={word}")
    variables = {**environment, **KEEP_MARKS}
    try:
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [*guard, "--", *command],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(alive_read,),
            )
    except OSError as error:
        os.close(alive_write)
        raise ServerError(f"cannot start the server: {error.strerror} ({error.filename})") from error
    finally:
        os.close(alive_read)
    return Guarded(process, alive_write)


def stop_guarded(
    guard: Guarded, mark: str, boot_id: str, timeout_s: float = 60.0, grace_s: float | None = None
) -> None:
    """Stop a guard, its server and every process they started.

    SIGTERM first; after `grace_s` (default: a third of `timeout_s`, at most 10 s) SIGKILL. Then everything
    that carries `mark=boot_id` in its environment is killed too, for processes that escaped a killed guard.

    Raises:
        ServerError: something still lives afterwards (a process stuck in the kernel).
    """
    grace_s = min(10.0, timeout_s / 3) if grace_s is None else grace_s
    known = snapshot(guard.pid)
    with contextlib.suppress(ProcessLookupError):
        guard.process.send_signal(signal.SIGTERM)
    if not _ended(guard, grace_s):
        known += snapshot(guard.pid)
        with contextlib.suppress(ProcessLookupError):
            guard.process.send_signal(signal.SIGTERM)
        if not _ended(guard, min(timeout_s, _KILL_WAIT_S)):
            known += snapshot(guard.pid)
            guard.process.kill()
            _ended(guard, 1.0)
    guard.close()
    left = kill_all([*known, *find_orphans(mark, [boot_id])])
    if left:
        names = ", ".join(f"{p.pid}" for p in left)
        raise ServerError(
            f"processes {names} of the server do not end, even by SIGKILL: "
            "they hang in the kernel; the GPU or the file system they wait for needs a look",
            Outcome.SERVER_DIED,
        )


def _ended(guard: Guarded, timeout_s: float) -> bool:
    try:
        guard.process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def snapshot(pid: int) -> list[psutil.Process]:
    """The descendants of a process, taken while it lives; each knows its own creation time."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def any_stopped(processes: Iterable[psutil.Process]) -> bool:
    """Whether one of them is stopped by a signal or a debugger."""
    stopped = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.status() in stopped:
                return True
    return False


def stop_tree(
    pid: int, grace_s: float, known: Iterable[psutil.Process] = (), timeout_s: float = _KILL_WAIT_S
) -> list[psutil.Process]:
    """Stop a process and its descendants: SIGTERM, `grace_s` later SIGKILL. Returns what still lives.

    `known` are descendants from earlier snapshots, which may have lost their parent since.
    """
    processes = _alive({*known, *snapshot(pid), *_process(pid)})
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=grace_s)
    return kill_all({*left, *snapshot(pid), *(d for p in left for d in snapshot(p.pid))}, timeout_s)


def kill_all(processes: Iterable[psutil.Process], timeout_s: float = _KILL_WAIT_S) -> list[psutil.Process]:
    """SIGKILL these very processes (id and creation time) and their descendants; returns what still lives."""
    targets = set(_alive(processes))
    targets |= {child for process in targets for child in snapshot(process.pid)}
    for process in targets:
        # psutil checks the creation time first, so that a reused id is never signalled.
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + timeout_s
    left = _alive(targets)
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = _alive(left)
    return left


def _process(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid)]
    except psutil.Error:
        return []


def _alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a zombie has let go of its memory, ports and GPU already."""
    alive = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.Error:
            continue
    return alive


def find_orphans(mark: str, boot_ids: Iterable[str] | None = None) -> list[psutil.Process]:
    """Processes of ours by their environment: `mark` set to one of `boot_ids` (None: to anything).

    Another user's processes, and those whose environment cannot be read, are never listed; nor is this
    process, which may run inside a marked environment itself.
    """
    wanted = None if boot_ids is None else set(boot_ids)
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        value = _environment_value(process, mark)
        if value and (wanted is None or value in wanted):
            found.append(process)
    return _alive(found)


def left_behind(mark: str) -> list[psutil.Process]:
    """Marked processes that no living guard looks after: what a killed guard left."""
    return [process for process in find_orphans(mark) if not _is_guarded(process)]


def _is_guarded(process: psutil.Process) -> bool:
    try:
        return any(_runs_guard(p.cmdline()) for p in [process, *process.parents()])
    except psutil.Error:
        return False


def _runs_guard(command: Sequence[str]) -> bool:
    """Whether a command is a guard's, of this installation or of another one on the machine."""
    own = _GUARD.parts[-3:]
    return "--alive-fd" in command and any(Path(word).parts[-3:] == own for word in command)


def _environment_value(process: psutil.Process, name: str) -> str | None:
    try:
        if process.uids().real != os.getuid():
            return None
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None


# -- ports ----------------------------------------------------------------------------------------------


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections that linger after a stop don't count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def free_port() -> int:
    """A port that nobody listens on, drawn at random so that two harnesses seldom meet.

    Raises:
        ServerError: kind `port_in_use`, when none was found.
    """
    draw = secrets.SystemRandom()
    for port in draw.sample(_PORT_RANGE, 200):
        if port_is_free(port) and port_is_free(port, "0.0.0.0"):
            return port
    raise ServerError(
        f"no free port between {_PORT_RANGE.start} and {_PORT_RANGE.stop - 1}: stop other servers",
        Outcome.PORT_IN_USE,
    )


def wait_port_free(port: int, timeout_s: float) -> None:
    """Return once nobody listens on the port.

    Raises:
        ServerError: kind `port_in_use`, naming the holder where it can be seen.
    """
    deadline = time.monotonic() + timeout_s
    while not port_is_free(port):
        if time.monotonic() > deadline:
            raise ServerError(
                f"port {port} is still in use{_holder(port)} {timeout_s:.0f} s after the server was stopped",
                Outcome.PORT_IN_USE,
            )
        time.sleep(_POLL_S)


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("inet"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                return f" by process {connection.pid}" if connection.pid else " by another user's process"
    except psutil.Error:
        pass
    return ""
