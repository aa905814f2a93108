"""The file of a plan, which the jobs of a multirun and the processes of its boots read."""

from __future__ import annotations

from typing import Any

import orjson

from harness.config import ServerConfig
from harness.errors import ConfigError
from harness.points import Point
from harness.records import Outcome
from harness.server.containers import Container
from harness.server.spec import ServerSpec
from harness.sweep.plan import Plan, PlannedBoot, PlannedPoint, State

PLAN_VERSION = 3
_FIELDS = ("results", "retry", "hardware", "boots", "experiments", "created_at")


def to_json(plan: Plan) -> bytes:
    """The plan for the jobs of a multirun."""

    def plain(value: Any) -> Any:
        if isinstance(value, Point):
            return value.model_dump(mode="json")
        raise TypeError(type(value).__name__)

    body = {"version": PLAN_VERSION, **{name: getattr(plan, name) for name in _FIELDS}}
    return orjson.dumps(body, default=plain, option=orjson.OPT_INDENT_2)


def from_json(text: bytes) -> Plan:
    """Read a plan back.

    Raises:
        ConfigError: it is not a plan of this version.
    """
    try:
        values = orjson.loads(text)
        if values["version"] != PLAN_VERSION:
            raise ConfigError(f"the plan has version {values['version']}, this program reads {PLAN_VERSION}")
        boots = tuple(_boot_from(boot) for boot in values["boots"])
        return Plan(
            values["results"],
            values["retry"],
            values["hardware"],
            boots,
            tuple(values["experiments"]),
            values["created_at"],
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"this is no plan file ({error}): make it anew") from error


def _boot_from(values: dict[str, Any]) -> PlannedBoot:
    spec = dict(values["spec"])
    spec["model_names"] = tuple(spec["model_names"])
    spec["extra_arguments"] = tuple(spec["extra_arguments"])
    spec["probe_windows"] = tuple(map(tuple, spec["probe_windows"]))
    if spec["container"] is not None:
        box = spec["container"]
        spec["container"] = Container(
            **{**box, "mounts": tuple(box["mounts"]), "arguments": tuple(box["arguments"])}
        )
    points = tuple(
        PlannedPoint(
            Point.model_validate(p["point"]),
            State(p["state"]),
            tuple(p["experiments"]),
            p["reason"],
            Outcome(p["refused_as"]) if p["refused_as"] else None,
            p["before"],
        )
        for p in values["points"]
    )
    return PlannedBoot(
        values["boot_id"],
        ServerSpec(**spec),
        ServerConfig(**values["server"]),
        values["tokenizer"],
        points,
        values["startup_s"],
        values["run_s"],
        values["estimate_measured"],
        values["whole_s"],
    )
