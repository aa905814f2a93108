"""The operating conditions of a group: the setup that most of its runs have, which tables compare at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from analysis.study import Cell, Group, task_params

_SETUP = ("dtype", "kv_dtype", "repetition_penalty", "max_new_tokens", "ignore_eos", "temperature", "tp",
          "kv_budget_mib", "shared_prefill")  # fmt: skip
_LABELS = {
    "depth": "d", "window_tokens": "W", "dtype": "dtype", "kv_dtype": "KV dtype", "tp": "TP",
    "repetition_penalty": "penalty", "temperature": "temperature", "kv_budget_mib": "KV budget MiB",
    "max_new_tokens": "new tokens", "ignore_eos": "ignore EOS", "batch": "B",
    "draft_backend": "draft backend", "prune_draft_prefill": "pruned draft prefill", "sink_tokens": "sink",
    "shared_prefill": "shared prefill", "task_params": "parameters of the input",
}  # fmt: skip
_STOOD_FOR = ("depth", "window_tokens", "dtype", "kv_dtype", "tp", "repetition_penalty", "temperature",
              "kv_budget_mib", "max_new_tokens", "ignore_eos")  # fmt: skip
_LENGTH = ("max_new_tokens", "ignore_eos", "shared_prefill")
_CELL = ("arm", "depth", "window_tokens", "context_tokens", "task", "draft_backend")
_ARM_SETUP = ("draft_backend", "prune_draft_prefill", "sink_tokens")
_SETTING = (*_SETUP, *_ARM_SETUP, "window_tokens", "batch", "task_params")


@lru_cache(maxsize=64)
def usual(group: Group) -> dict[str, Any]:
    """The setup of most single, unprobed runs, which tables compare; not to be changed."""
    return _mode(group.select(batch=1, probe=None) or list(group.cells), _SETUP)


def usual_at(group: Group, base: Mapping[str, Any], **where: Any) -> dict[str, Any]:
    """`base` with the length of the outputs that the runs at `where` have, where none of them has its own.

    A smoke test's many short runs must not hide the longer ones of another context. Of several lengths it is
    one at which both native and the window arm ran, then the one nearest to `base`, then the most frequent.
    """
    strict = {name: value for name, value in base.items() if name not in _LENGTH}
    found: dict[tuple[object, ...], set[tuple[Any, ...]]] = {}
    for cell in group.select(**({"batch": 1, "probe": None} | strict | where)):
        length = tuple(getattr(cell.point, name) for name in _LENGTH)
        found.setdefault(length, set()).add(tuple(getattr(cell.point, name) for name in _CELL))
    if not found:
        return dict(base)

    def rank(length: tuple[object, ...]) -> tuple[bool, int, int]:
        arms = {arm for arm, *_ in found[length]}
        unlike = sum(value != base[name] for name, value in zip(_LENGTH, length, strict=True))
        return not {"native", group.window_arm} <= arms, unlike, -len(found[length])

    length = min(found, key=rank)
    return {**base, **dict(zip(_LENGTH, length, strict=True))}


@lru_cache(maxsize=1024)
def usual_params(group: Group, task: str) -> dict[str, Any]:
    """The parameters that most single, unprobed runs of a task have; not to be changed."""
    cells = group.select(batch=1, probe=None, task=task) or group.select(task=task)
    found = {repr(sorted(p.items())): p for p in (task_params(c) for c in cells)}
    texts = Counter(repr(sorted(task_params(c).items())) for c in cells)
    return found[texts.most_common(1)[0][0]] if texts else {}


@lru_cache(maxsize=256)
def usual_of_arm(group: Group, arm: str) -> dict[str, Any]:
    """An arm's own setup in most single, unprobed runs; not to be changed."""
    return _mode(group.select(arm=arm, batch=1, probe=None), _ARM_SETUP)


def closest(cells: Sequence[Cell], conditions: Mapping[str, Any]) -> list[Cell]:
    """Cells of one setting, so that nothing unlike is averaged or shown for one another.

    That setting agrees with `conditions` (fields of a point) in the most fields, and of equal ones has the
    most cells.
    """
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(repr([_field(cell, name) for name in _SETTING]), []).append(cell)
    if not found:
        return []
    return min(found.values(), key=lambda like: (len(_unlike(like[0], conditions)), -len(like)))


def difference(cell: Cell, conditions: Mapping[str, Any]) -> str:
    """In what a cell's setting is not that of `conditions`, as `W = 508, B = 4`; empty where it is."""
    return changes({name: _field(cell, name) for name in _unlike(cell, conditions)})


def changes(values: Mapping[str, Any]) -> str:
    """Fields of a point with their values, in a table's words."""
    return ", ".join(
        f"{_LABELS[name]} = {'none' if value is None else value}" for name, value in values.items()
    )


def _unlike(cell: Cell, conditions: Mapping[str, Any]) -> list[str]:
    return [name for name in _SETTING if name in conditions and _field(cell, name) != conditions[name]]


def _field(cell: Cell, name: str) -> Any:
    return task_params(cell) if name == "task_params" else getattr(cell.point, name)


def _mode(cells: Sequence[Cell], names: Sequence[str]) -> dict[str, Any]:
    """The joint setting of most cells; prompts and repeats of one cell count once.

    Ties go to the first in the group's order.
    """
    if not cells:
        return {}
    distinct = dict.fromkeys(
        (tuple(getattr(c.point, name) for name in names), tuple(getattr(c.point, name) for name in _CELL))
        for c in cells
    )
    counts = Counter(setting for setting, _ in distinct)
    return dict(zip(names, counts.most_common(1)[0][0], strict=True))


def setting_text(group: Group, depth: int) -> str:
    """What rows without a column for it stand for, of each setting that was measured at several values.

    Args:
        depth: the one that tables without a column for it show.
    """
    chosen = {"depth": depth, "window_tokens": group.operating_window(batch=1), **usual(group)}
    cells = group.select(arm=group.window_arm, batch=1, probe=None)
    several = []
    for name in _STOOD_FOR:
        values = {getattr(cell.point, name) for cell in cells}
        if len(values) > 1 and chosen[name] in values:
            others = sorted(values - {chosen[name]}, key=lambda value: (value is not None, value))
            also = ", ".join(map(str, others))
            several.append(f"{_LABELS[name]} = {chosen[name]} (also measured: {also})")
    return "; ".join(several)


def penalty_text(group: Group) -> str:
    """What a repetition penalty does to a comparison of arms; empty where no record has one."""
    # Of an imported log nobody knows what its client asked for.
    known = [c for c in group.cells if c.record.source == "measured"]
    found = [c.point.repetition_penalty for c in known if c.point.repetition_penalty != 1]
    if not found:
        return ""
    values = ", ".join(f"{value:g}" for value in sorted(set(found)))
    return (
        f"{len(found)} of {len(group.cells)} records have a repetition penalty ({values}), with which arms "
        "may write different texts: AL and TPOT are of each arm's own (see the table `penalty`)."
    )
