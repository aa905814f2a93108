"""From composed configuration to points and the servers they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness import config as schema
from harness.boots import Boot
from harness.config import RunConfig
from harness.errors import ConfigError
from harness.host.detect import detect_hardware
from harness.models.checkpoint import Checkpoint, open_checkpoint
from harness.points import ARMS, WINDOWED_ARMS, Point, make_point
from harness.server.capacity import context_length_for
from harness.server.spec import ServerSpec

# Deepest draft of any arm: one context length serves all arms, or a dense run could accept what an MTP
# run refuses.
MAX_DEPTH = 9
_POOL_SLACK_TOKENS = 64
# Rooms of the KV pool's own dummy slot and the drafts of the step in flight.
_GPU_CHUNK, _CPU_CHUNK = 8192, 2048


@dataclass(frozen=True)
class Cell:
    """One configuration with its checkpoint, ready to become points."""

    config: RunConfig
    checkpoint: Checkpoint

    def points(self) -> list[Point]:
        """One point for each repeat."""
        if self.config.repeats < 1:
            raise ConfigError(f"repeats={self.config.repeats}: at least one run is needed")
        return [_point(self.config, self.checkpoint, repeat) for repeat in range(self.config.repeats)]


def load(overrides: Sequence[str] = ()) -> RunConfig:
    """Compose conf/ with command-line style overrides.

    Raises:
        ConfigError: an unknown name, a wrong type, or a bad override, in one sentence.
    """
    schema.register()
    try:
        with initialize_config_module("conf", version_base="1.3"):
            return to_run_config(compose("config", overrides=list(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_line(error)) from error


def to_run_config(composed: DictConfig) -> RunConfig:
    """A composed Hydra configuration as the schema's dataclass, hardware=auto resolved."""
    values = OmegaConf.to_object(composed)
    if not isinstance(values, RunConfig):
        raise ConfigError(
            "the configuration does not follow conf/config.yaml: keep run_schema in its defaults"
        )
    if values.hardware.name == "auto":
        values.hardware = _hardware(detect_hardware())
    return values


def _hardware(name: str) -> schema.HardwareConfig:
    schema.register()
    with initialize_config_module("conf", version_base="1.3"):
        loaded: Any = OmegaConf.to_object(compose("config", overrides=[f"hardware={name}"]))
    hardware: schema.HardwareConfig = loaded.hardware
    return hardware


def one_line(error: Exception) -> str:
    """Hydra's multi-line complaints as one sentence, its cause included."""
    cause = error.__cause__ or error
    lines = [line.strip() for line in f"{error}\n{cause if cause is not error else ''}".splitlines()]
    return " ".join(dict.fromkeys(line for line in lines if line))


def open_cell(config: RunConfig) -> Cell:
    """Check names and open the checkpoint."""
    if config.arm not in ARMS:
        raise ConfigError(f"arm={config.arm} is unknown: choose one of {', '.join(ARMS)}")
    return Cell(config, open_checkpoint(config.model.path))


def _point(config: RunConfig, checkpoint: Checkpoint, repeat: int) -> Point:
    dense, windowed = config.arm == "dense", config.arm in WINDOWED_ARMS
    model = config.model
    return make_point(
        {
            "model": model.name,
            "checkpoint": checkpoint.fingerprint,
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
            "ignore_eos": config.ignore_eos,
            "prune_draft_prefill": config.prune_draft_prefill and windowed,
            "seed": config.seed,
            "repeat": repeat,
        }
    )


def _default(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def draft_backend(config: RunConfig) -> str:
    """The draft's attention backend for an arm on this hardware."""
    backend = config.hardware.draft_backend.get(config.arm)
    if backend is None:
        raise ConfigError(
            f"conf/hardware/{config.hardware.name}.yaml names no draft_backend for arm={config.arm}: add one"
        )
    return backend


def server_spec(cell: Cell, points: Sequence[Point]) -> ServerSpec:
    """The server that a cell's points run on, large enough for all of `points`."""
    config, hardware = cell.config, cell.config.hardware
    first = points[0]
    on_cpu = hardware.device == "cpu"
    context_length = max(context_length_for(p.context_tokens, p.max_new_tokens, MAX_DEPTH) for p in points)
    batch = max(p.batch for p in points)
    pool = config.server.max_total_tokens
    if pool is None and on_cpu and config.server.mem_fraction_static is None:
        pool = batch * (context_length + MAX_DEPTH) + _POOL_SLACK_TOKENS
    fraction = config.server.mem_fraction_static
    if fraction is None and not on_cpu:
        fraction = hardware.mem_fraction_static if batch == 1 else hardware.mem_fraction_static_batch
    return ServerSpec(
        model_path=str(cell.checkpoint.serving_path(config.model.yarn_factor)),
        device=hardware.device,
        arm=first.arm,
        depth=first.depth,
        window_tokens=first.window_tokens,
        sink_tokens=first.sink_tokens,
        tp=first.tp,
        dtype=first.dtype,
        kv_dtype=first.kv_dtype,
        target_backend=hardware.target_backend,
        draft_backend=first.draft_backend,
        context_length=context_length,
        max_running_requests=batch,
        chunked_prefill_tokens=config.server.chunked_prefill_tokens or (_CPU_CHUNK if on_cpu else _GPU_CHUNK),
        max_total_tokens=pool,
        mem_fraction_static=fraction,
        prune_draft_prefill=first.prune_draft_prefill,
        threads=hardware.threads,
        trust_remote_code=config.model.trust_remote_code,
        extra_arguments=(
            *config.model.server_arguments,
            *hardware.server_arguments,
            *config.server.extra_arguments,
        ),
    )


# What two points must share to run on one server.
_SERVER_FIELDS = (
    "model", "checkpoint", "hardware", "arm", "depth", "window_tokens", "sink_tokens", "tp",
    "dtype", "kv_dtype", "draft_backend", "prune_draft_prefill", "probe",
)  # fmt: skip


def boots(cells: Iterable[Cell]) -> list[Boot]:
    """Group the points of many cells into as few servers as their settings allow, duplicates merged."""
    groups: dict[tuple[Any, ...], list[tuple[Cell, Point]]] = {}
    seen: set[str] = set()
    for cell in cells:
        for point in cell.points():
            if point.key in seen:
                continue
            seen.add(point.key)
            fields = tuple(getattr(point, name) for name in _SERVER_FIELDS)
            # A batch point and a single one want different memory fractions on a GPU.
            crowded = point.batch > 1 and cell.config.hardware.device != "cpu"
            groups.setdefault((*fields, crowded, repr(cell.config.server)), []).append((cell, point))
    made = []
    for members in groups.values():
        points = [point for _, point in members]
        made.append(Boot(server_spec(members[0][0], points), tuple(points)))
    return made


def tokenizer_path(cell: Cell) -> Path:
    """Where the cell's tokenizer lies."""
    return cell.checkpoint.path
