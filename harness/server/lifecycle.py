"""Start a server, follow its log, know whether it lives, and stop all of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from harness import schedlog
from harness.errors import ServerError
from harness.host.detect import without_gpus
from harness.host.gpu import gpu_names, memory_used_mib, wait_for_baseline
from harness.records import Outcome, Pool, ServerInfo
from harness.server import failures, logfile, processes
from harness.server.arguments import without_secrets
from harness.server.client import Client
from harness.server.containers import cache_home
from harness.server.failure_patterns import ENDING
from harness.server.launch import BOOT_MARK, container_name, launch_of
from harness.server.provenance import image_of, served_versions
from harness.server.reported import contradictions
from harness.server.spec import ServerSpec
from harness.server.stacks import dump_stacks

_POLL_S = 0.2
# How long a server that ends may take to do so by itself, and how long one line of its log can be.
_ENDING_S = 5.0
_LINE_BYTES = 400
_TAIL_BYTES = 200_000


@dataclass
class Server:
    """One running server. Use as a context manager: leaving it stops the whole process tree.

    Args:
        spec: what to start.
        log_path: where its output goes; the file stays.
        listener: called with each log event as it is read.
        startup_timeout_s: how long weights may take to load and kernels to compile.
        port: fixed port, or None for a free one at each start.
        probe_directory: where the probe that `spec` names writes; made at the start.
    """

    spec: ServerSpec
    log_path: Path
    listener: logfile.Listener | None = None
    startup_timeout_s: float = 3600.0
    stop_timeout_s: float = 60.0
    port: int | None = None
    probe_directory: Path | None = None
    boot_id: str = field(default_factory=lambda: secrets.token_hex(6))
    info: ServerInfo = field(default_factory=ServerInfo)
    _process: subprocess.Popen[bytes] | None = None
    _guard: processes.Guarded | None = None
    _client: Client | None = None
    _follower: schedlog.LogFollower = field(default_factory=schedlog.LogFollower)
    _memory_before: dict[str, int] = field(default_factory=dict)
    _offset: int = 0
    _log_start: int = 0
    _ending_since: float | None = None

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self._stop_after_error()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self._stop_after_error()

    @property
    def _container_name(self) -> str:
        return container_name(self.boot_id)

    @property
    def client(self) -> Client:
        """HTTP client of the started server."""
        if self._client is None:
            raise ServerError("the server is not running")
        return self._client

    # -- start and stop -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server and wait until it says that it is ready.

        Raises:
            ServerError: with the first cause as `kind`, or `startup_timeout`.
        """
        port = self.port if self.port is not None else processes.free_port()
        if not processes.port_is_free(port):
            raise ServerError(
                f"port {port} is in use by another program: free it or leave server.port unset",
                Outcome.PORT_IN_USE,
            )
        if self.probe_directory is not None:
            self.probe_directory.mkdir(parents=True, exist_ok=True)
        home = cache_home() if self.spec.container is not None else None
        launch = launch_of(self.spec, port, self.boot_id, self.probe_directory, home)
        self.info = ServerInfo(
            boot_id=self.boot_id,
            command=launch.command,
            engine_settings=self.spec.engine_settings().as_dict(),
            settings=self.spec.settings,
        )
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self._offset = self.log_size()  # an older server's log may lie there
        if self.spec.device != "cpu":
            _require_gpus(self.spec)
            self._memory_before = memory_used_mib()
        environment = {**os.environ, **launch.variables}
        self._guard = processes.spawn_guarded(launch.command, environment, self.log_path, launch.cleanup)
        self._client = Client(f"http://127.0.0.1:{port}")
        self.port_used = port
        began = time.monotonic()
        ready = False
        while not ready:
            ready = any(isinstance(event, schedlog.ReadyLine) for event in self.read_log())
            if not ready:
                self.raise_if_dead("start")
                if time.monotonic() - began > self.startup_timeout_s:
                    raise ServerError(
                        f"the server was not ready after {self.startup_timeout_s:.0f} s: see {self.log_path} "
                        "or raise server.startup_timeout_s",
                        Outcome.STARTUP_TIMEOUT,
                    )
                time.sleep(_POLL_S)
        self.info.startup_s = round(time.monotonic() - began, 2)
        self._read_back()

    def stop(self) -> None:
        """Stop every process of this server and wait until its port and its GPU memory are free again.

        Raises:
            ServerError: one of them is still held, named with its holder where that can be seen.
        """
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._guard is not None:
            processes.stop_guarded(self._guard, BOOT_MARK, self.boot_id, self.stop_timeout_s)
            self._guard = None
            processes.wait_port_free(self.port_used, self.stop_timeout_s)
            wait_for_baseline(self._memory_before, self.stop_timeout_s)

    def _stop_after_error(self) -> None:
        # What ended the server matters more than what its end left behind; the doctor finds the latter.
        with contextlib.suppress(ServerError):
            self.stop()

    # -- state ----------------------------------------------------------------------------------------

    def read_log(self) -> list[schedlog.Event]:
        """New log events since the last call; each also goes to the listener.

        Raises:
            ServerError: the log has gone, so that nothing of the server would ever be seen.
        """
        try:
            with self.log_path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read()
        except FileNotFoundError:
            if self._guard is None:
                return []
            raise ServerError(
                f"the server's log {self.log_path} was moved or removed while it ran: leave the results "
                "folder where it is until the run has ended, and run this again",
                Outcome.INTERRUPTED,
            ) from None
        before = min(_LINE_BYTES, self._offset - self._log_start)
        self._offset += len(chunk)
        if (
            chunk
            and self._ending_since is None
            and ENDING.search(self.log_since(self._offset - len(chunk) - before))
        ):
            self._ending_since = time.monotonic()
        return logfile.events_of(chunk, self._follower, self.listener)

    def log_size(self) -> int:
        """Bytes of log written so far: a mark for `log_since`."""
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def log_since(self, mark: int) -> bytes:
        """The raw log from byte `mark` on; empty where it has gone."""
        return logfile.read_from(self.log_path, mark)

    def exit_code(self) -> int | None:
        """None while the server process lives."""
        return self._guard.poll() if self._guard is not None else None

    def has_ended(self) -> bool:
        """Whether the server process has ended, or takes itself down."""
        return self.exit_code() is not None or self._ending_since is not None

    def has_stopped_process(self) -> bool:
        """Whether a process of this server is in the stopped state (SIGSTOP, a debugger)."""
        return processes.any_stopped(self._processes())

    def dump_stacks(self) -> Path | None:
        """Write what each process of this server is doing beside its log; None where that can't be seen."""
        return dump_stacks(self._processes(), self.log_path.with_suffix(".stacks.txt"))

    def _processes(self) -> list[psutil.Process]:
        if self._guard is None:
            return []
        # Those in a container are children of its runtime, not of the guard.
        inside = processes.find_orphans(BOOT_MARK, [self.boot_id]) if self.spec.container is not None else []
        return list(dict.fromkeys([*processes.snapshot(self._guard.pid), *inside]))

    def raise_if_dead(self, phase: str) -> None:
        """Raise the typed first cause when the server process has ended, or lost a part and is ending."""
        code = self.exit_code()
        if code is not None:
            time.sleep(_POLL_S)  # let the last lines reach the file
            raise self.failure(phase, code)
        if self._ending_since is not None and time.monotonic() - self._ending_since > _ENDING_S:
            raise self.failure(phase, None)

    def first_cause(self, error: ServerError) -> ServerError:
        """What a broken connection comes from: the server's own end, if it ends; else the error itself."""
        if error.kind != Outcome.SERVER_DIED or self._guard is None:
            return error
        deadline = time.monotonic() + 2 * _ENDING_S
        while time.monotonic() < deadline:
            try:
                self.read_log()
                self.raise_if_dead("run")
            except ServerError as cause:
                return cause
            time.sleep(_POLL_S)
        return error

    def failure(self, phase: str, exit_code: int | None) -> ServerError:
        """The error that the log's tail explains."""
        tail = self.log_since(max(0, self.log_size() - _TAIL_BYTES)).decode("utf-8", "replace")
        found = failures.classify(tail, exit_code, "start" if phase == "start" else "run")
        return ServerError(f"{found.cause} {found.advice} (log: {self.log_path})".strip(), found.kind)

    def _read_back(self) -> None:
        """Capacity and arguments as the server itself reports them."""
        reported = self.client.get("/server_info")
        states: Any = reported.pop("internal_states", None)
        self.info.arguments = without_secrets(reported)
        self.info.versions = served_versions(self.spec, self._container_name, reported.get("version"))
        self.info.image = image_of(self.spec, self._container_name)
        parsed = schedlog.parse(self.log_since(self._log_start))
        capacity = parsed.capacity
        if capacity is not None:
            self.info.max_total_tokens = capacity.max_total_tokens
            self.info.max_running_requests = capacity.max_running_requests
            self.info.context_length = capacity.context_length
        elif isinstance(states, list) and states:
            self.info.max_total_tokens = reported.get("max_total_num_tokens")
        self.info.pools = [
            Pool(role=row.role, tokens=row.tokens, bytes=row.bytes, dtype=row.dtype) for row in parsed.pools
        ]
        if parsed.plugin is not None:
            self.info.engine_report = parsed.plugin.settings
        wanted = self.spec.engine_settings()
        if wanted.active and self.info.engine_report.get("mode") != wanted.mode:
            # SGLang only logs a plugin that it did not load, and would serve a full-context draft instead.
            raise ServerError(
                f"the server runs without the windowed draft (mode={wanted.mode} was asked for): is this "
                "package installed in the server's environment? `python -m harness.doctor` tells",
                Outcome.INVALID,
            )
        wrong = contradictions(self.spec, reported)
        if wrong:
            raise ServerError(
                f"the server runs with other arguments than it was started for: {'; '.join(wrong)}; its log "
                f"says why ({self.log_path}): SGLang overrides some for a model or a GPU",
                Outcome.INVALID,
            )


def _require_gpus(spec: ServerSpec) -> None:
    """A record must not name another GPU than it was measured on; what SLURM starts may run elsewhere."""
    elsewhere = spec.container is not None and spec.container.kind == "enroot"
    names = gpu_names()
    if (names or not elsewhere) and (reason := without_gpus(names, spec.gpu_name_contains, spec.tp)):
        raise ServerError(f"does not run here: {reason}", Outcome.INVALID)
