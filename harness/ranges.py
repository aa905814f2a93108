"""Which numbers a setting may have: refused when a configuration is composed, not after a server start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from harness.config import RunConfig
from harness.errors import ConfigError

LARGEST = 2**63 - 1
"""What a record, which is JSON, can hold."""


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`; the open ends are left out, `besides` is allowed too."""

    least: float
    most: float = LARGEST
    open_below: bool = False
    open_above: bool = False
    besides: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a number is in it; NaN never is."""
        above = value > self.least if self.open_below else value >= self.least
        below = value < self.most if self.open_above else value <= self.most
        return (above and below) or value == self.besides

    def __str__(self) -> str:
        least, most, bounded = self.least, self.most, self.most != LARGEST
        if self.open_above:
            text = f"between {least} and {most}"
        elif self.open_below:
            text = f"above {least} and at most {most}" if bounded else f"above {least}"
        else:
            text = f"from {least} to {most}" if bounded else f"of at least {least}"
        return f"a number {text}" + ("" if self.besides is None else f", or {self.besides}")


_COUNT, _POSITIVE, _SHARE = Range(1), Range(0, open_below=True), Range(0, 1, open_below=True, open_above=True)
RANGES = {
    "model.native_context_tokens": _COUNT,
    "model.yarn_factor": Range(1),
    "model.full_attention_layers": _COUNT,
    "model.kv_heads": _COUNT,
    "model.head_dim": _COUNT,
    "model.default_context": _COUNT,
    "model.default_window": _COUNT,
    "model.default_sink": Range(0),
    "hardware.gpus": Range(0),
    "hardware.memory_gib": _POSITIVE,
    "hardware.bandwidth_gb_per_s": _POSITIVE,
    "hardware.threads": _COUNT,
    "hardware.mem_fraction_static": _SHARE,
    "hardware.mem_fraction_static_batch": _SHARE,
    "server.port": Range(1, 65535),
    "server.chunked_prefill_tokens": Range(1, besides=-1),  # SGLang's -1: one chunk
    "server.max_total_tokens": _COUNT,
    "server.mem_fraction_static": _SHARE,
    "server.startup_timeout_s": _POSITIVE,
    "server.stall_limit_s": _POSITIVE,
    "server.stop_timeout_s": _POSITIVE,
    "depth": Range(1, 64),
    "window": _COUNT,
    "sink": Range(0),
    "context": _COUNT,
    "batch": _COUNT,
    "tp": _COUNT,
    "max_new_tokens": _COUNT,
    "repetition_penalty": Range(0, 2, open_below=True),
    "temperature": Range(0),
    "kv_budget_mib": _COUNT,
    "seed": Range(0),
    "repeats": Range(1, 1000),  # more would only make a plan that never ends
}


def check(config: RunConfig) -> None:
    """Refuse a number that its setting cannot have.

    Raises:
        ConfigError: names the setting and its range.
    """
    for name, allowed in RANGES.items():
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        # What is no number at all is refused by its type.
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and not (math.isfinite(value) and allowed.holds(value)):
            most = f", at most {LARGEST}" if LARGEST == allowed.most < value else ""
            raise ConfigError(f"{name}={value}: give {allowed}{most}")
