"""Experiments: which points a table or figure needs, as blocks of axes in `conf/experiment/`.

A block is a product of its axes, each combination with its zipped values and its fixed ones:

    - product: {arm: [native, ring], depth: [3, 5]}
      zip: [{window: 1020, sink: 4}, {window: 252, sink: 4}]
      set: {model: tiny, input: cwe}

gives 2 x 2 x 2 combinations. `only_on` names the hardware profiles that a block is meant for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from harness.errors import ConfigError

AXES = (
    "model", "input", "params", "arm", "depth", "window", "sink", "context", "batch", "tp", "dtype",
    "kv_dtype", "draft_backend", "probe", "max_new_tokens", "repetition_penalty", "ignore_eos",
    "prune_draft_prefill", "share_prefill", "seed", "repeats", "temperature", "kv_budget_mib",
)  # fmt: skip
"""What a block may vary; the names of the command line. `model` and `input` are configuration files."""

Combination = dict[str, Any]
_BLOCK_KEYS = {"product", "zip", "set", "only_on"}
_EXPERIMENT_KEYS = {"name", "title", "include", "gpu", "cpu"}


@dataclass(frozen=True)
class Block:
    """A set of combinations of axis values."""

    product: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    zipped: Sequence[Mapping[str, Any]] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    only_on: tuple[str, ...] = ()

    def combinations(self) -> Iterator[Combination]:
        """Every combination, in the order in which the axes are written."""
        names = list(self.product)
        for values in product(*self.product.values()):
            for row in self.zipped or [{}]:
                yield {**self.fixed, **dict(zip(names, values, strict=True)), **row}


@dataclass(frozen=True)
class Experiment:
    """The points behind one table or figure, on GPUs and scaled to the shipped model on a CPU."""

    name: str
    title: str
    include: tuple[str, ...]
    gpu: tuple[Block, ...]
    cpu: tuple[Block, ...]

    def blocks(self, device: str) -> tuple[Block, ...]:
        """The blocks for a device kind, `cpu` or anything else."""
        return self.cpu if device == "cpu" else self.gpu


def parse(values: Mapping[str, Any], name: str) -> Experiment:
    """An experiment from its configuration.

    Raises:
        ConfigError: an unknown key or axis, an axis given twice, or an empty one.
    """
    where = f"conf/experiment/{name}.yaml"
    _only_known(values, _EXPERIMENT_KEYS, where)
    return Experiment(
        name=str(values.get("name") or name),
        title=str(values.get("title") or ""),
        include=tuple(values.get("include") or ()),
        gpu=tuple(_block(block, f"{where}, gpu") for block in values.get("gpu") or ()),
        cpu=tuple(_block(block, f"{where}, cpu") for block in values.get("cpu") or ()),
    )


def _block(values: Mapping[str, Any], where: str) -> Block:
    _only_known(values, _BLOCK_KEYS, where)
    axes: dict[str, list[Any]] = {}
    for name, choices in (values.get("product") or {}).items():
        if not isinstance(choices, list) or not choices:
            raise ConfigError(f"{where}: the axis {name} needs a list of at least one value, not {choices!r}")
        axes[name] = choices
    rows = values.get("zip") or []
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) and row for row in rows):
        raise ConfigError(f"{where}: zip needs a list of mappings, such as [{{window: 252, sink: 4}}]")
    if len({frozenset(row) for row in rows}) > 1:
        raise ConfigError(f"{where}: the rows of zip must all set the same axes")
    fixed = values.get("set") or {}
    zipped = list(rows[0]) if rows else []
    every = [*axes, *zipped, *fixed]
    for name in every:
        if name not in AXES:
            raise ConfigError(f"{where}: there is no axis {name!r}; choose from {', '.join(AXES)}")
        if every.count(name) > 1:
            raise ConfigError(f"{where}: the axis {name} is given twice")
    return Block(axes, rows, fixed, tuple(values.get("only_on") or ()))


def _only_known(values: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")


def matches(combination: Mapping[str, Any], only: Mapping[str, Any]) -> bool:
    """Whether a combination has the wanted value, or one of the wanted list, on every filtered axis."""
    for name, wanted in only.items():
        choices = wanted if isinstance(wanted, list) else [wanted]
        if combination.get(name) not in choices:
            return False
    return True


def check_axes(values: Mapping[str, Any], option: str) -> None:
    """Refuse an option whose keys are no axes, or that reaches into one."""
    for name, value in values.items():
        if name not in AXES:
            raise ConfigError(f"{option}.{name}: there is no axis {name!r}; choose from {', '.join(AXES)}")
        if isinstance(value, Mapping) and name != "params":
            inner = f"{name}.{next(iter(value), '')}"
            advice = f"give {inner}=... itself" if name == "model" else f"give {option}.{name}=VALUE"
            advice = f"give {option}.params=..." if inner == "input.params" else advice
            raise ConfigError(f"{option}.{inner}: {name} is an axis of whole values; {advice}")
