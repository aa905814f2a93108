"""The paper's numbers (arXiv:2607.21535), from `claims.csv` with their source and place."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources

from harness.errors import ConfigError

PAPER_CONTEXT_TOKENS = 1_040_000
OPERATING_WINDOW, OPERATING_SINK, OPERATING_DEPTH = 4032, 64, 7
# A single printed value stands for this much either way: the content spread of a step the paper reports.
SINGLE_VALUE_TOLERANCE = 0.05

MODELS: dict[str, str] = {
    "qwen3.6-35b-a3b": "Qwen3.6-35B-A3B",
    "qwen3.5-122b-a10b": "Qwen3.5-122B-A10B",
    "nemotron-3-super-120b-a12b": "Nemotron-3-Super-120B-A12B",
}
FULL_ATTENTION_LAYERS = {
    "qwen3.6-35b-a3b": 10,
    "qwen3.5-122b-a10b": 12,
    "nemotron-3-super-120b-a12b": 8,
}


@dataclass(frozen=True)
class Claim:
    """One number the paper states: a value (`low` == `high`), or a range over several cells.

    `place` is the section, caption or file it was read from.
    """

    low: float
    high: float
    unit: str
    source: str
    place: str

    @property
    def text(self) -> str:
        """As printed beside a measured value."""
        if self.low == self.high:
            return f"{self.low:g}"
        if self.low == float("-inf"):
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if self.high == float("inf") else f"{self.low:g} to {self.high:g}"

    @property
    def accepted(self) -> tuple[float, float]:
        """What counts as inside: the range, or 5 % either way of a single value."""
        if self.low != self.high:
            return self.low, self.high
        slack = abs(self.low) * SINGLE_VALUE_TOLERANCE
        return self.low - slack, self.high + slack


def paper_model(name: str) -> str | None:
    """The paper's name of a model of `conf/model`, or None for one it does not have."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    if "qwen" in plain and "122b" in plain:
        return "qwen3.5-122b-a10b"
    if "qwen" in plain and "35b" in plain:
        return "qwen3.6-35b-a3b"
    return "nemotron-3-super-120b-a12b" if "nemotron" in plain and "120b" in plain else None


@functools.cache
def _claims() -> dict[tuple[str, str, str, str, str], tuple[float, str, str, str]]:
    text = resources.files(__package__).joinpath("claims.csv").read_text(encoding="utf-8")
    found = {}
    for row in csv.DictReader(text.splitlines()):
        key = (row["artifact"], row["model"], row["task"], row["arm"], row["quantity"])
        if key in found:
            raise ConfigError(f"claims.csv states {key} twice")
        found[key] = (float(row["value"]), row["unit"], row["source"], row["place"])
    return found


def claim(artifact: str, model: str | None, task: str, arm: str, quantity: str) -> Claim | None:
    """What the paper says of a quantity: for this model and task, else for all models or all tasks.

    Args:
        model: as `paper_model` returns it; None (another model) has no claim.
    """
    if model is None:
        return None
    known = _claims()
    places = (
        (m, t) for m in (model, "qwen (both)" if "qwen" in model else "all", "all") for t in (task, "all")
    )
    for m, t in places:
        single = known.get((artifact, m, t, arm, quantity))
        if single is not None:
            return Claim(single[0], single[0], *single[1:])
        low, high = (known.get((artifact, m, t, arm, f"{quantity}_{end}")) for end in ("min", "max"))
        if low is not None or high is not None:
            first = low or high
            assert first is not None
            return Claim(low[0] if low else float("-inf"), high[0] if high else float("inf"), *first[1:])
    return None


def all_claims() -> list[dict[str, str | float]]:
    """Every row of the file."""
    names = ("artifact", "model", "task", "arm", "quantity", "value", "unit", "source", "place")
    return [dict(zip(names, (*key, *value), strict=True)) for key, value in _claims().items()]
