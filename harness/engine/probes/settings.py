"""What a probe inside a server is told.

Imports neither torch nor SGLang: the launcher builds these settings and passes them to the server's
processes through one environment variable; the plugin reads them back there. Off unless asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from harness.engine.variables import read_variable
from harness.errors import ConfigError

Kind = Literal["off", "trace", "decision", "attention_mass"]
KINDS: tuple[Kind, ...] = ("off", "trace", "decision", "attention_mass")
PROBES: tuple[str, ...] = KINDS[1:]
"""What a point may ask for."""
NATIVE_ONLY = frozenset({"decision", "attention_mass"})
"""Probes that read the draft's full-length keys, eagerly."""
VARIABLE = "WINDOWED_MTP_PROBE"
"""Environment variable that carries the settings, as JSON."""


@dataclass(frozen=True)
class ProbeSettings:
    """One probe of one server.

    Attributes:
        kind: what is recorded; `off` registers nothing.
        directory: where each rank writes its lines, an absolute path that the server can write to.
        windows: (W, n_sink) pairs in tokens, the point's own first.
        max_steps: draft forwards that a probe of the native draft looks at after a prefill; a trace records
            all iterations.
        warm_steps: draft forwards that it leaves out before.
        nvtx: also mark each part as an NVTX range, for a profiler to see.

    Raises:
        ConfigError: on construction, when the settings make no sense.
    """

    kind: Kind = "off"
    directory: str = ""
    windows: tuple[tuple[int, int], ...] = ()
    max_steps: int = 512
    warm_steps: int = 0
    nvtx: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"probe={self.kind!r} is unknown: choose one of {', '.join(PROBES)}.")
        if not isinstance(self.nvtx, bool):
            raise ConfigError(f"nvtx must be true or false, not {self.nvtx!r}.")
        if not _whole(self.max_steps) or self.max_steps < 1:
            raise ConfigError(f"max_steps must be a whole number above 0, not {self.max_steps!r}.")
        if not _whole(self.warm_steps) or self.warm_steps < 0:
            raise ConfigError(f"warm_steps must be a whole number from 0 on, not {self.warm_steps!r}.")
        for window in self.windows:
            pair = isinstance(window, tuple) and len(window) == 2 and all(map(_whole, window))
            if not pair or window[0] < 1 or window[1] < 0:
                raise ConfigError(f"windows must be pairs (W > 0, n_sink >= 0) in tokens, not {window!r}.")
        if not self.active:
            return
        if not isinstance(self.directory, str) or not Path(self.directory).is_absolute():
            raise ConfigError(f"probe={self.kind} needs an absolute directory, not {self.directory!r}.")
        if self.kind in NATIVE_ONLY and not self.windows:
            raise ConfigError(f"probe={self.kind} needs at least one window to compare with.")

    @property
    def active(self) -> bool:
        """Whether anything is recorded."""
        return self.kind != "off"

    def path(self, tp_rank: int) -> Path:
        """The file that one tensor-parallel rank writes."""
        return Path(self.directory) / file_name(self.kind, tp_rank)

    def environment(self) -> dict[str, str]:
        """The variable to add to a server's environment; an inherited one is always overridden."""
        return {VARIABLE: orjson.dumps(asdict(self)).decode() if self.active else ""}


def file_name(kind: str, tp_rank: int) -> str:
    """Name of the file in the probe's directory that one tensor-parallel rank writes."""
    return f"{kind}.rank{tp_rank}.jsonl"


def from_environment(environment: Mapping[str, str] | None = None) -> ProbeSettings:
    """Read the settings back inside a server process; an absent or empty variable means off.

    Raises:
        ConfigError: the variable holds something else than these settings.
    """
    values = read_variable(VARIABLE, ProbeSettings, environment)
    windows = values.get("windows", [])
    if not isinstance(windows, list) or not all(isinstance(window, list) for window in windows):
        raise ConfigError(f"{VARIABLE} holds windows that are no list of pairs: {windows!r}.")
    return ProbeSettings(**{**values, "windows": tuple(tuple(window) for window in windows)})


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
