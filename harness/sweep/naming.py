"""What the boots and points of one plan are called: short, and no two alike.

A name begins with what every reader looks for (model, arm, depth, window, length); what else tells it from
others of the same plan, such as a seed or a dtype, follows only where it is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import conf
from harness.points import Point
from harness.sweep.plan import Plan, PlannedBoot

# Fields that a point's label has already.
_IN_LABEL = {"model", "arm", "depth", "window_tokens", "sink_tokens", "context_tokens", "batch", "task"}
_OF_BOOTS = (
    "dtype",
    "draft_backend",
    "probe",
    "prune_draft_prefill",
    "kv_budget_mib",
    "hardware",
    "checkpoint",
)


def boot_names(plan: Plan) -> dict[str, str]:
    """A name for each boot by its id."""
    names = {
        boot.boot_id: f"{boot.points[0].point.model} {boot.spec.label} {boot.spec.kv_dtype} KV"
        for boot in plan.boots
    }
    return _told_apart(names, {boot.boot_id: _boot_details(boot) for boot in plan.boots})


def point_names(plan: Plan) -> dict[str, str]:
    """A name for each point by its key."""
    points = [planned.point for planned in plan.points]
    names = {p.key: p.label.removesuffix(p.task) + task_name(p) for p in points}
    return _told_apart(names, {p.key: _point_details(p) for p in points})


def names_on_boot(boot: PlannedBoot) -> dict[str, str]:
    """A name for each point of one boot by its key, without what the boot's name says."""
    points = [planned.point for planned in boot.points]
    names = {p.key: f"S={p.context_tokens} B={p.batch} {task_name(p)}" for p in points}
    return _told_apart(names, {p.key: _point_details(p) for p in points})


def task_name(point: Point) -> str:
    """The name of a point's input: of the file in conf/input/ that it is, else the task and what differs."""
    known = _inputs(point.task)
    given = point.task_params
    for name in (point.task, *known):
        if known.get(name) == given:
            return name
    usual = known.get(point.task, {})
    changed = [f"{name}={_said(value)}" for name, value in given.items() if usual.get(name) != value]
    return f"{point.task} ({', '.join(changed)})" if changed else point.task


@cache
def _inputs(task: str) -> dict[str, dict[str, Any]]:
    """The parameters of each file in conf/input/ that is of a task, by its name."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((Path(str(conf.__file__)).parent / "input").glob("*.yaml")):
        values = OmegaConf.to_container(OmegaConf.load(path))
        if isinstance(values, dict) and values.get("task") == task:
            found[path.stem] = dict(values.get("params") or {})
    return found


def _told_apart(names: Mapping[str, str], details: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The names, with as many details as leave no two equal; where none is left, the id."""
    told = dict(names)
    for detail in dict.fromkeys(name for values in details.values() for name in values):
        for alike in _alike(told):
            values = {key: details[key].get(detail) for key in alike}
            if len({repr(value) for value in values.values()}) > 1:
                told |= {key: told[key] + _suffix(detail, value) for key, value in values.items()}
    for alike in _alike(told):
        told |= {key: f"{told[key]} {key}" for key in alike}
    return told


def _alike(names: Mapping[str, str]) -> list[list[str]]:
    groups = defaultdict(list)
    for key, name in names.items():
        groups[name].append(key)
    return [keys for keys in groups.values() if len(keys) > 1]


def _suffix(detail: str, value: Any) -> str:
    if value is None or value is False or value in ([], {}, ()):
        return ""  # as usual: the others say what they have
    return f" {detail}" if value is True else f" {detail}={_said(value)}"


def _said(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)


def _point_details(point: Point) -> dict[str, Any]:
    """What a label leaves out, the likeliest differences first."""
    first = ("seed", "repeat", "probe")
    values = {name: getattr(point, name) for name in type(point).model_fields if name not in _IN_LABEL}
    return {**{name: values[name] for name in first}, **values}


def _boot_details(boot: PlannedBoot) -> dict[str, Any]:
    """What tells servers apart: settings of their points first, then those of the command."""
    point = boot.points[0].point
    values: dict[str, Any] = {name: getattr(point, name) for name in _OF_BOOTS}
    values["max_running_requests"] = boot.spec.max_running_requests
    values |= {f"server.{name}": value for name, value in asdict(boot.server).items()}
    return values | {
        name: value
        for name, value in asdict(boot.spec).items()
        if name not in values and not isinstance(value, dict)
    }
