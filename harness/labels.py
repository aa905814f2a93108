"""Names that stand for one machine or one checkpoint: a record must not carry one that it was not made on."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import conf
from harness.compose import Cell, hardware_config, model_config
from harness.config import HardwareConfig, ModelConfig
from harness.errors import ConfigError

_OPEN = {"auto", "custom"}
"""Profiles that are filled in by a user or a detection, and stand for nothing of their own."""


def check(cell: Cell) -> None:
    """Refuse a shipped profile's name on other hardware or on another checkpoint.

    Raises:
        ConfigError: names the setting.
    """
    _check_hardware(cell.config.hardware)
    _check_model(cell)


@lru_cache(maxsize=8)
def _profiles(group: str) -> tuple[str, ...]:
    folder = Path(str(conf.__file__)).parent / group
    return tuple(sorted(path.stem for path in folder.glob("*.yaml") if path.stem not in _OPEN))


def profile_of(name: str) -> str | None:
    """The file of conf/model/ that has a `model.name`; None for a name of somebody's own."""
    return next((file for file, profile in _models().items() if profile.name == name), None)


def _models() -> dict[str, ModelConfig]:
    known = {}
    for file in _profiles("model"):
        with suppress(ConfigError):  # an unfinished profile of somebody's own
            known[file] = model_config(file)
    return known


def _check_hardware(hardware: HardwareConfig) -> None:
    if hardware.name not in _profiles("hardware"):
        return
    own = hardware_config(hardware.name)
    for name in ("device", "gpu_name_contains"):
        is_set, wanted = getattr(hardware, name), getattr(own, name)
        if is_set != wanted:
            raise ConfigError(
                f"hardware.name={hardware.name} is a profile of conf/hardware/ whose {name} is "
                f"{wanted or 'empty'}, not {is_set or 'empty'}: choose hardware={hardware.name}, or give "
                "this machine a name of its own"
            )


def _check_model(cell: Cell) -> None:
    model = cell.config.model
    known = _models()
    own = next((profile for profile in known.values() if profile.name == model.name), None)
    if own is None:
        return
    advice = "leave model.path to the profile, or give this checkpoint a model.name of its own"
    for file, profile in known.items():
        if profile.name != model.name and profile.path == model.path:
            raise ConfigError(
                f"model.name={model.name}, and model.path={model.path} is that of model={file}: {advice}"
            )
    if cell.checkpoint is not None and (wrong := _contradictions(own, cell)):
        raise ConfigError(f"{model.path} is no {model.name}: {', '.join(wrong)}; {advice}")


def _contradictions(own: ModelConfig, cell: Cell) -> list[str]:
    """What the profile of a model says of its architecture and the checkpoint contradicts."""
    if cell.checkpoint is None:
        return []
    found = cell.checkpoint.architecture
    pairs = {
        "full-attention layers": (found.full_attention_layers, own.full_attention_layers),
        "KV heads": (found.kv_heads, own.kv_heads),
        "head size": (found.head_dim, own.head_dim),
    }
    return [
        f"{name} {has}, not {wanted}" for name, (has, wanted) in pairs.items() if wanted not in (None, has)
    ]
