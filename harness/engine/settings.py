"""What the plugin inside a server is told, and the server arguments that go with it.

Imports neither torch nor SGLang: the launcher builds these settings and passes them to the server's
processes through one environment variable; the plugin reads them back there. Everything is off by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import orjson

from harness.engine.variables import read_variable
from harness.errors import ConfigError

Mode = Literal["off", "windowed", "ring"]
MODES: tuple[Mode, ...] = ("off", "windowed", "ring")
VARIABLE = "WINDOWED_MTP"
"""Environment variable that carries the settings, as JSON."""

_COUNTS = ("window_tokens", "sink_tokens", "draft_tokens", "topk")


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the draft inside one server.

    Attributes:
        mode: `off` leaves SGLang as it is; `windowed` limits what the draft reads; `ring` also limits what
            its KV pool holds.
        window_tokens: W, the most recent keys the draft may read.
        sink_tokens: n_sink, the first keys it may always read.
        draft_tokens: d, the server's `--speculative-num-draft-tokens` (gamma + 1 for a chain).
        topk: k, the width of the draft tree; 1 is a chain.
        prune_prefill: run the draft's prefill only on prompt tokens whose KV a later step can read.
        window_extend: window the draft's extend and prefill reads too. False leaves them at full length,
            which is what upstream's own flags do; a ring cannot.

    Raises:
        ConfigError: on construction, when the settings make no sense.
    """

    mode: Mode = "off"
    window_tokens: int = 0
    sink_tokens: int = 0
    draft_tokens: int = 0
    topk: int = 1
    prune_prefill: bool = True
    window_extend: bool = True

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"mode={self.mode!r} is not one of {', '.join(MODES)}.")
        for name in _COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name} must be a whole number, not {value!r}.")
        for name in ("prune_prefill", "window_extend"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, not {getattr(self, name)!r}.")
        if self.mode != "off":
            self._check_window()

    def _check_window(self) -> None:
        if self.window_tokens <= 0:
            raise ConfigError(
                f"mode={self.mode} needs window_tokens > 0, not {self.window_tokens} "
                "(the paper's point is 4032 with 64 sink tokens)."
            )
        if self.sink_tokens < 0:
            raise ConfigError(f"sink_tokens={self.sink_tokens} must not be negative.")
        if self.topk < 1:
            raise ConfigError(f"topk={self.topk} must be at least 1.")
        if self.draft_tokens < 2:
            raise ConfigError(
                f"mode={self.mode} needs draft_tokens >= 2 (one draft forward), not {self.draft_tokens}."
            )
        if self.window_tokens < self.draft_tokens * self.topk:
            raise ConfigError(
                f"window_tokens={self.window_tokens} is smaller than the {self.draft_tokens * self.topk} "
                f"tokens that one step drafts (draft_tokens={self.draft_tokens}, topk={self.topk})."
            )
        if self.mode == "ring" and not self.window_extend:
            raise ConfigError(
                "mode=ring cannot leave the draft's extend reads at full length: "
                "the ring no longer holds those keys."
            )
        if self.prune_prefill and not self.window_extend:
            raise ConfigError(
                "prune_prefill needs window_extend: a full-length extend would read keys never computed."
            )

    @property
    def active(self) -> bool:
        """Whether the plugin changes the draft at all."""
        return self.mode != "off"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for records."""
        return asdict(self)

    def environment(self) -> dict[str, str]:
        """The variable to add to a server's environment; an inherited one is always overridden."""
        return {VARIABLE: orjson.dumps(asdict(self)).decode()}

    def server_arguments(self, draft_backend: str | None = None) -> list[str]:
        """Speculation arguments of the server, upstream's window flags included.

        Upstream's flags record the window in `/server_info`; the plugin refuses a server whose flags
        differ from these settings, and does the windowing itself on every backend it supports.

        Args:
            draft_backend: attention backend of the draft; None leaves it to SGLang (CPU).
        """
        if self.draft_tokens < 2:
            return []
        arguments = [
            "--speculative-algorithm", "NEXTN",
            "--speculative-num-steps", str(self.draft_tokens - 1),
            "--speculative-eagle-topk", str(self.topk),
            "--speculative-num-draft-tokens", str(self.draft_tokens),
        ]  # fmt: skip
        if draft_backend is not None:
            arguments += ["--speculative-draft-attention-backend", draft_backend]
        if self.active:
            arguments += [
                "--speculative-draft-window-size", str(self.window_tokens),
                "--speculative-draft-sink-size", str(self.sink_tokens),
            ]  # fmt: skip
        return arguments


def from_environment(environment: Mapping[str, str] | None = None) -> EngineSettings:
    """Read the settings back inside a server process; an absent or empty variable means off.

    Raises:
        ConfigError: the variable holds something else than these settings.
    """
    return EngineSettings(**read_variable(VARIABLE, EngineSettings, environment))
