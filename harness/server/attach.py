"""A server that someone else started: its arguments are read back and checked before it is measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from harness import schedlog
from harness.errors import ConfigError, ServerError
from harness.points import WINDOWED_ARMS
from harness.records import Outcome, Pool, ServerInfo
from harness.server import logfile
from harness.server.arguments import API_KEY, log_problem, without_secrets
from harness.server.client import Client
from harness.server.identity import model_differences
from harness.server.lifecycle import Server
from harness.server.provenance import only_sglang
from harness.server.replies import brief
from harness.server.reported import MEASURED, differing, of_point
from harness.server.spec import ServerSpec


@dataclass
class RunningServer:
    """A server at a URL, measured as it is. Use like `Server`; leaving it stops nothing.

    A server that wants an API key gets the one in the environment variable `WMTP_API_KEY`.

    Args:
        spec: what the points need; the server must be like it.
        url: base URL.
        log_path: its log file, readable here; without one there are no step times.
    """

    spec: ServerSpec
    url: str
    log_path: Path | None = None
    listener: logfile.Listener | None = None
    info: ServerInfo = field(default_factory=ServerInfo)
    client: Client = field(init=False)
    _follower: schedlog.LogFollower = field(default_factory=schedlog.LogFollower)
    _offset: int = 0

    def __post_init__(self) -> None:
        self.client = Client(self.url, os.environ.get(API_KEY))

    def __enter__(self) -> RunningServer:
        """Read the arguments back.

        Raises:
            ServerError: nobody answers, its log cannot be read, or it is not the server that the points
                need; every difference is named.
        """
        if problem := log_problem(self.spec.arm, self.log_path):
            raise ServerError(problem, Outcome.INVALID)
        reported = self.client.get("/server_info")
        states: Any = reported.pop("internal_states", None)
        log = schedlog.parse(self.log_since(0))
        self.info = ServerInfo(
            boot_id="url",
            command=[self.url],
            settings=self.spec.settings,
            arguments=without_secrets(reported),
            max_total_tokens=_capacity(reported, states, "max_total_num_tokens"),
            max_running_requests=_capacity(reported, states, "max_running_requests"),
            context_length=_context_length(reported, self.url),
            startup_s=0.0,
            versions=only_sglang(reported.get("version")),
            pools=[Pool(role=r.role, tokens=r.tokens, bytes=r.bytes, dtype=r.dtype) for r in log.pools],
            engine_report=log.plugin.settings if log.plugin is not None else {},
        )
        wrong = differences(self.spec, reported, self._model_info()) + self._mode_differences()
        if wrong:
            raise ServerError(
                f"the server at {self.url} is not the one these points need: {'; '.join(wrong)}",
                Outcome.INVALID,
            )
        self._offset = self.log_size()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()

    def has_ended(self) -> bool:
        """Not visible from here."""
        return False

    def has_stopped_process(self) -> bool:
        """Not visible from here."""
        return False

    def dump_stacks(self) -> Path | None:
        """Somebody else's server is not looked into."""
        return None

    def read_log(self) -> list[schedlog.Event]:
        """New log events since the last call."""
        chunk = self.log_since(self._offset)
        self._offset += len(chunk)
        return logfile.events_of(chunk, self._follower, self.listener)

    def log_size(self) -> int:
        """Bytes of log written so far."""
        return self.log_path.stat().st_size if self.log_path is not None and self.log_path.exists() else 0

    def log_since(self, mark: int) -> bytes:
        """The raw log from byte `mark` on."""
        return b"" if self.log_path is None else logfile.read_from(self.log_path, mark)

    def raise_if_dead(self, phase: str) -> None:
        """Nothing to look at: a broken connection tells."""

    def first_cause(self, error: ServerError) -> ServerError:
        """The error itself, for the same reason."""
        return error

    def _model_info(self) -> dict[str, Any]:
        """What the server says of its model; empty where it has no such page."""
        try:
            return self.client.get("/model_info")
        except ServerError:
            return {}

    def _mode_differences(self) -> list[str]:
        """Ring and windowed have the same arguments: the plugin's own line in the log tells them apart."""
        if self.spec.arm not in WINDOWED_ARMS:
            return []
        mode = self.info.engine_report.get("mode", "off")
        return [] if mode == self.spec.arm else [f"its draft's mode is {mode}, not {self.spec.arm}"]


AnyServer = Server | RunningServer


def require_answer(url: str) -> None:
    """Refuse a server that is not there, before a point is said to have failed on it.

    Raises:
        ConfigError: nobody answers at its address.
    """
    client = Client(url, os.environ.get(API_KEY))
    try:
        client.get("/server_info")
    except ServerError as error:
        if error.kind == Outcome.SERVER_DIED:  # whoever answers anything is looked at by `RunningServer`
            raise ConfigError(
                f"{error}: start the server, or correct server.url={url}; nothing was recorded"
            ) from error
    finally:
        client.close()


def differences(
    spec: ServerSpec, reported: dict[str, Any], model: Mapping[str, Any] | None = None
) -> list[str]:
    """How a server's reported arguments differ from what a spec needs; a missing argument differs too.

    Args:
        model: what the server says of its model besides (/model_info).
    """
    wanted = of_point(spec, on_cpu=spec.device == "cpu") | MEASURED | {"page_size": (1,)}
    found = differing(wanted, reported, absent_differs=True)
    found += model_differences(spec, {**reported, **(model or {})})
    context = reported.get("context_length")
    if isinstance(context, int) and context < spec.context_length:
        found.append(f"context_length is {context}, below {spec.context_length}")
    return found


def _context_length(reported: dict[str, Any], url: str) -> int | None:
    value = reported.get("context_length")
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ServerError(
        f"the server at {url} reports context_length={brief(value)}, no number of tokens: is it SGLang?",
        Outcome.INVALID,
    )


def _capacity(reported: dict[str, Any], states: Any, name: str) -> int | None:
    """A capacity as the server reports it: at the top, or of its first scheduler."""
    value = reported.get(name)
    if value is None and isinstance(states, list) and states and isinstance(states[0], dict):
        value = states[0].get(name, states[0].get(f"effective_{name}_per_dp"))
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
