"""The shipped hardware profiles by name, for readers of records that compose no configuration."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf


@cache
def device_of(hardware: str) -> str | None:
    """The device of a profile in conf/hardware/; None for a name of somebody's own."""
    for entry in files("conf").joinpath("hardware").iterdir():
        if entry.name == f"{hardware}.yaml":
            values: Any = OmegaConf.create(entry.read_text("utf-8"))
            device: str | None = values.get("device")
            return device
    return None
