"""The server that points need: its settings, its memory, its container, and what it records besides."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace

from harness.compose import Cell
from harness.config import RunConfig
from harness.engine.cpu.environment import KERNELS_PATH
from harness.engine.probes.settings import NATIVE_ONLY
from harness.errors import ConfigError
from harness.points import CLIENT_PROBES, Point
from harness.server.arguments import check_server, log_problem
from harness.server.budget import pool_tokens
from harness.server.capacity import tokens_needed
from harness.server.containers import KINDS, Container
from harness.server.spec import ServerSpec
from harness.sweep import unkeyed

# Deepest draft of any arm: one context length serves all arms, or a dense run could accept what an MTP
# run refuses.
MAX_DEPTH = 9
# Room for the KV pool's own dummy slot and the slots that the scheduler keeps free.
_POOL_SLACK_TOKENS = 64
_GPU_CHUNK, _CPU_CHUNK = 8192, 2048
SERVER_KINDS = ("local", *KINDS, "url")
# Windows that a probe compares beside the point's own, as shares of its W + n_sink.
_PROBED_SHARES = (0.25, 0.5, 2.0, 4.0)


def server_spec(cell: Cell, points: Sequence[Point], context_length: int) -> ServerSpec:
    """The server that a cell's points run on, large enough for all of `points`.

    Raises:
        ConfigError: an unknown kind of server, an impossible container, an argument that may not be given.
    """
    config, hardware = cell.config, cell.config.hardware
    check_server(config)
    # A log that is named may be another machine's; one that is not can be nowhere.
    unlogged = config.server.kind == "url" and config.server.log_path is None
    if unlogged and (lacking := log_problem(config.arm, None)):
        raise ConfigError(lacking)
    if config.server.kind not in SERVER_KINDS:
        raise ConfigError(
            f"server.kind={config.server.kind} is unknown: choose one of {', '.join(SERVER_KINDS)}"
        )
    first = points[0]
    on_cpu = hardware.device == "cpu"
    batch = max(p.batch for p in points)
    pool = config.server.max_total_tokens
    if pool is None and on_cpu and config.server.mem_fraction_static is None:
        pool = _POOL_SLACK_TOKENS + max(
            tokens_needed(p.context_tokens, p.max_new_tokens, MAX_DEPTH, p.batch) for p in points
        )
    fraction = config.server.mem_fraction_static
    if fraction is None and not on_cpu:
        fraction = hardware.mem_fraction_static if batch == 1 else hardware.mem_fraction_static_batch
    path = cell.checkpoint.serving_path(config.model.yarn_factor) if cell.checkpoint else config.model.path
    spec = ServerSpec(
        model_path=str(path),
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
        gpu_name_contains=hardware.gpu_name_contains,
        trust_remote_code=config.model.trust_remote_code,
        python=config.server.python or sys.executable,
        extra_arguments=(
            *config.model.server_arguments,
            *hardware.server_arguments,
            *config.server.extra_arguments,
        ),
        container=_container(cell),
        probe=server_probe(first),
        probe_windows=probed_windows(config) if first.probe in NATIVE_ONLY else (),
        profiler=profiler(config) if first.probe == "trace" else None,
        settings=unkeyed.of_cell(cell),
        model_names=(config.model.name, config.model.path),
    )
    if first.kv_budget_mib is None or cell.checkpoint is None:
        return spec
    tokens = pool_tokens(
        first.kv_budget_mib,
        cell.checkpoint.architecture,
        first.kv_dtype,
        first.arm,
        spec.engine_settings(),
        batch,
        first.tp,
    )
    return replace(spec, max_total_tokens=tokens)


def server_probe(point: Point) -> str | None:
    """The probe that a point's server is started with."""
    return None if point.probe in CLIENT_PROBES else point.probe


def probed_windows(config: RunConfig) -> tuple[tuple[int, int], ...]:
    """(W, n_sink) pairs for a native run's probes: what the window arms read, then narrower and wider."""
    window = config.window if config.window is not None else config.model.default_window
    sink = config.sink if config.sink is not None else config.model.default_sink
    others = (int(share * (window + sink)) - sink for share in _PROBED_SHARES)
    return ((window, sink), *((other, sink) for other in others if other >= config.depth))


def profiler(config: RunConfig) -> str | None:
    """What takes the kernel times of a traced run: nsys where it is installed, else the torch profiler.

    Raises:
        ConfigError: nsys was asked for where it cannot follow the server.
    """
    local, on_gpu = config.server.kind == "local", config.hardware.device != "cpu"
    if config.profile == "auto":
        return "nsys" if local and on_gpu and shutil.which("nsys") else "torch"
    if config.profile == "nsys" and not (local and on_gpu):
        raise ConfigError("profile=nsys needs a GPU and server.kind=local: use profile=torch")
    return None if config.profile == "none" else config.profile


def _container(cell: Cell) -> Container | None:
    server = cell.config.server
    if server.kind not in KINDS:
        return None
    mounts = list(server.mounts)
    if cell.checkpoint is not None:
        mounts.append(str(cell.checkpoint.serving_path(cell.config.model.yarn_factor)))
        if cell.config.model.yarn_factor:
            mounts.append(str(cell.checkpoint.path))  # the copy's links lead there
    on_cpu = cell.config.hardware.device == "cpu"
    if on_cpu:
        mounts.append(str(KERNELS_PATH))
    return Container(
        kind="docker" if server.kind == "docker" else "enroot",
        image=server.image or "",
        python=server.python or "python3",
        mounts=tuple(dict.fromkeys(mounts)),
        arguments=tuple(server.container_arguments),
        gpus=not on_cpu,
    )
