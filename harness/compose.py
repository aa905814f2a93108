"""From composed configuration to cells: one configuration each, with its checkpoint, ready for points."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness import config as schema
from harness import ranges
from harness.complaints import one_sentence
from harness.config import PROFILES, HardwareConfig, InputConfig, ModelConfig, RunConfig
from harness.engine.probes.settings import PROBES
from harness.errors import ConfigError
from harness.host.detect import detect_hardware
from harness.models.checkpoint import Checkpoint, open_checkpoint
from harness.points import ARMS, CLIENT_PROBES, WINDOWED_ARMS, Point, make_point

_NO_SUCH_KEY = re.compile(r"^Could not override '([^']*)'", re.MULTILINE)
_NO_CHOICE = re.compile(r"Could not find '([\w/]+)/([^'/]*)'\s+Available options in '[\w/]+':((?:\n\t\S+)+)")
_NO_LAUNCHER = re.compile(r"Could not load 'hydra/launcher/(submitit_\w+)'")
_LAUNCHERS = {"submitit_slurm": "slurm", "submitit_local": "local_jobs"}
_NOT_SET = re.compile(r"missing mandatory value: .*\n\s*full_key: (\S+)")


@dataclass(frozen=True)
class Cell:
    """One configuration with its checkpoint.

    Attributes:
        checkpoint: None where it is not on this machine; then `obstacle` says so.
        experiments: names of the experiments that ask for it.
        obstacle: why it cannot run here, in one sentence; empty where it can.
    """

    config: RunConfig
    checkpoint: Checkpoint | None
    experiments: tuple[str, ...] = ()
    obstacle: str = ""

    def points(self) -> list[Point]:
        """One point for each repeat."""
        ranges.check(self.config)
        return [_point(self.config, self.checkpoint, repeat) for repeat in range(self.config.repeats)]

    @property
    def tokenizer_path(self) -> Path:
        """Where the checkpoint's tokenizer lies."""
        return self.checkpoint.path if self.checkpoint else Path(self.config.model.path)


def load(overrides: Sequence[str] = ()) -> RunConfig:
    """Compose conf/ with command-line style overrides.

    Raises:
        ConfigError: an unknown name, a wrong type, or a bad override, in one sentence.
    """
    return to_run_config(load_raw(overrides))


def load_raw(overrides: Sequence[str] = (), with_hydra: bool = False) -> DictConfig:
    """The composed configuration before it is checked against the schema's types.

    Args:
        with_hydra: Hydra's own part of it too, such as the launcher.
    """
    schema.register()
    # Inside a Hydra job Hydra is initialised already, and it knows one instance only.
    state = GlobalHydra.instance()
    running = state.hydra
    state.clear()
    try:
        with initialize_config_module("conf", version_base="1.3"):
            composed: DictConfig = compose(
                "config", overrides=list(overrides), return_hydra_config=with_hydra
            )
            return composed
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(one_line(error)) from error
    finally:
        state.hydra = running


def to_run_config(composed: DictConfig) -> RunConfig:
    """A composed Hydra configuration as the schema's dataclass, hardware=auto resolved."""
    unknown = _unknown_keys(composed, RunConfig)
    if unknown:
        raise ConfigError(_no_such_setting(unknown[0]))
    try:
        values = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from error
    if not isinstance(values, RunConfig):
        raise ConfigError(
            "the configuration does not follow conf/config.yaml: keep run_schema in its defaults"
        )
    _refuse_empty(values)
    ranges.check(values)
    if values.hardware.name == "auto":
        values.hardware = hardware_config(detect_hardware())
    return values


def _refuse_empty(values: Any, prefix: str = "") -> None:
    """Refuse settings that are empty texts: as a path, each would be the current folder.

    Raises:
        ConfigError: names the setting.
    """
    for item in fields(values):
        value = getattr(values, item.name)
        if is_dataclass(value):
            _refuse_empty(value, f"{prefix}{item.name}.")
        elif isinstance(value, str) and not value.strip() and item.default != "":
            raise ConfigError(f"{prefix}{item.name}= is empty: give it a value, or leave it out")


@lru_cache(maxsize=64)
def _group(name: str, choice: str) -> Any:
    """One configuration file of a group, as its dataclass; callers copy before they change it."""
    fixed = [] if name == "hardware" else ["hardware=cpu"]  # detection is not needed for the others
    return getattr(load([f"{name}={choice}", *fixed]), name)


def model_config(name: str, changes: Mapping[str, Any] | None = None) -> ModelConfig:
    """conf/model/<name>.yaml, with other values of some of its settings."""
    if not changes:
        model: ModelConfig = _group("model", name)
        return replace(model)
    composed = load_raw([f"model={name}", "hardware=cpu"])
    composed.model.update(changes)
    return to_run_config(composed).model


def hardware_config(name: str) -> HardwareConfig:
    """conf/hardware/<name>.yaml."""
    hardware: HardwareConfig = _group("hardware", name)
    return replace(hardware)


def input_config(name: str) -> InputConfig:
    """conf/input/<name>.yaml."""
    made: InputConfig = _group("input", name)
    return InputConfig(made.task, dict(made.params))


@lru_cache(maxsize=64)
def experiment_values(name: str) -> Mapping[str, Any]:
    """What conf/experiment/<name>.yaml says, as plain values."""
    values = OmegaConf.to_container(load_raw([f"experiment={name}", "hardware=cpu"]).experiment, resolve=True)
    if not isinstance(values, dict):
        raise ConfigError(f"conf/experiment/{name}.yaml sets no `experiment:`")
    return {str(key): value for key, value in values.items()}


def one_line(error: Exception) -> str:
    """Hydra's multi-line complaints as one sentence, its cause included, its internals left out."""
    cause = error.__cause__ or error
    text = f"{error}\n{cause if cause is not error else ''}"
    if found := _NO_SUCH_KEY.search(text):
        return _no_such_setting(found[1])
    if found := _NO_LAUNCHER.search(text):
        launcher = _LAUNCHERS[found[1]]
        return f"hydra/launcher={launcher} needs Hydra's submitit launcher: pip install -e '.[slurm]'"
    if found := _NO_CHOICE.search(text):
        return _no_such_choice(*found.groups())
    if found := _NOT_SET.search(text):
        return f"{found[1]} is not set: give it, {found[1]}=..."
    return one_sentence(error)


def _no_such_choice(group: str, name: str, listed: str) -> str:
    choices = [choice for choice in listed.split() if not choice.endswith("_schema")]
    near = difflib.get_close_matches(name, choices, n=1)
    advice = f"did you mean {near[0]}? " if near else ""
    return f"there is no {group}={name}: {advice}choose from {', '.join(choices)}"


def _no_such_setting(key: str) -> str:
    near = difflib.get_close_matches(key, [name for name, _ in schema.settings()], n=1)
    advice = f"did you mean {near[0]}?" if near else "`python -m harness --help` lists all"
    return f"there is no setting {key!r}: {advice}"


def _unknown_keys(composed: DictConfig, kind: type[Any], prefix: str = "") -> list[str]:
    """Settings that were added by `+name=value` and that nothing reads."""
    hints, found = get_type_hints(kind), []
    for key in composed:
        name = str(key)
        if name not in hints:
            found.append(prefix + name)
        elif is_dataclass(hints[name]):
            found += _unknown_keys(composed[name], hints[name], f"{prefix}{name}.")
    return found


def open_cell(config: RunConfig) -> Cell:
    """Check names and open the checkpoint.

    Raises:
        ConfigError: an unknown arm, or a checkpoint that cannot be found.
    """
    check_values(config)
    return Cell(config, open_checkpoint(config.model.path))


def check_values(config: RunConfig) -> None:
    """Refuse names that no later step would understand, numbers out of range, and settings without effect.

    Raises:
        ConfigError: names the setting.
    """
    ranges.check(config)
    for name in ("only", "force"):
        if config.experiment is None and getattr(config, name):
            raise ConfigError(f"{name}=... changes an experiment, and none is named: add experiment=NAME")
    named: dict[str, tuple[str | None, tuple[str, ...]]] = {
        "arm": (config.arm, ARMS),
        "probe": (config.probe, (*PROBES, *sorted(CLIENT_PROBES))),
        "profile": (config.profile, PROFILES),
    }
    for name, (value, choices) in named.items():
        if value is not None and value not in choices:
            raise ConfigError(f"{name}={value} is unknown: choose one of {', '.join(choices)}")


def _point(config: RunConfig, checkpoint: Checkpoint | None, repeat: int) -> Point:
    dense, windowed = config.arm == "dense", config.arm in WINDOWED_ARMS
    model = config.model
    return make_point(
        {
            "model": model.name,
            "checkpoint": checkpoint.fingerprint if checkpoint else f"not here: {model.path}",
            "hardware": config.hardware.name,
            "arm": config.arm,
            "depth": 1 if dense else config.depth,
            "window_tokens": _default(config.window, model.default_window) if windowed else None,
            "sink_tokens": _default(config.sink, model.default_sink) if windowed else None,
            "batch": config.batch,
            "tp": config.tp,
            "context_tokens": _default(config.context, model.default_context),
            "max_new_tokens": config.max_new_tokens,
            "task": config.input.task,
            "task_params": dict(config.input.params),
            "dtype": model.dtype,
            "kv_dtype": config.kv_dtype,
            "draft_backend": "-" if dense else draft_backend(config),
            "repetition_penalty": config.repetition_penalty,
            "temperature": config.temperature,
            "kv_budget_mib": config.kv_budget_mib,
            "ignore_eos": config.ignore_eos,
            "prune_draft_prefill": config.prune_draft_prefill and windowed,
            "probe": config.probe,
            "shared_prefill": config.share_prefill,
            "seed": config.seed,
            "repeat": repeat,
        }
    )


def _default(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def draft_backend(config: RunConfig) -> str:
    """The draft's attention backend: the run's own, else the hardware's for its arm."""
    backend = config.draft_backend or config.hardware.draft_backend.get(config.arm)
    if backend is None:
        raise ConfigError(
            f"conf/hardware/{config.hardware.name}.yaml names no draft_backend for arm={config.arm}: add one"
        )
    return backend
