"""Settings that travel to a server's processes as JSON in one environment variable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import orjson

from harness.errors import ConfigError


def read_variable(name: str, kind: type, environment: Mapping[str, str] | None) -> dict[str, Any]:
    """The values that a variable holds for the dataclass `kind`; empty where it is absent or empty.

    Args:
        environment: where to look; None: this process's.

    Raises:
        ConfigError: the variable holds something else than fields of `kind`.
    """
    text = (os.environ if environment is None else environment).get(name, "")
    if not text:
        return {}
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{name} is not JSON ({error}): let the launcher set it.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{name} must hold a JSON object, not {type(values).__name__}.")
    known = {field.name for field in fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(f"{name} has unknown settings {', '.join(unknown)}; known: {sorted(known)}.")
    return values
