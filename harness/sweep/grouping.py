"""Cells grouped into boots: as few servers as their settings allow, each point once."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from harness.compose import Cell
from harness.config import RunConfig, ServerConfig
from harness.engine.cpu.environment import KERNELS_PATH
from harness.engine.probes.settings import NATIVE_ONLY
from harness.errors import ConfigError
from harness.models.checkpoint import preflight
from harness.points import CLIENT_PROBES, SPECULATIVE_ARMS, Point
from harness.records import Outcome
from harness.server.arguments import check_server, log_problem
from harness.server.budget import pool_tokens
from harness.server.capacity import context_length_for, tokens_needed
from harness.server.containers import KINDS, Container
from harness.server.spec import ServerSpec
from harness.sweep import unkeyed

# Deepest draft of any arm: one context length serves all arms, or a dense run could accept what an MTP
# run refuses.
MAX_DEPTH = 9
# Room for the KV pool's own dummy slot and the slots that the scheduler keeps free.
_POOL_SLACK_TOKENS = 64
_GPU_CHUNK, _CPU_CHUNK = 8192, 2048
MOST_POINTS = 20_000
SERVER_KINDS = ("local", *KINDS, "url")

# What two points must share to run on one server.
_SERVER_FIELDS = (
    "model", "checkpoint", "hardware", "arm", "depth", "window_tokens", "sink_tokens", "tp",
    "dtype", "kv_dtype", "draft_backend", "prune_draft_prefill", "kv_budget_mib",
)  # fmt: skip
# Windows that a probe compares beside the point's own, as shares of its W + n_sink.
_PROBED_SHARES = (0.25, 0.5, 2.0, 4.0)


@dataclass(frozen=True)
class Refusal:
    """Why a point ends in a record without a server: what a preflight found."""

    outcome: Outcome
    reason: str


@dataclass
class Wanted:
    """A point that a study wants, with the first cell and all experiments that asked for it."""

    point: Point
    cell: Cell
    experiments: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Group:
    """The points of one server."""

    boot_id: str
    spec: ServerSpec
    server: ServerConfig
    tokenizer: str
    members: tuple[Wanted, ...]


def merge(cells: Iterable[Cell]) -> dict[str, Wanted]:
    """The points of all cells by key; the same point of two cells is one.

    Raises:
        ConfigError: there are too many to plan.
    """
    wanted: dict[str, Wanted] = {}
    for cell in cells:
        if len(wanted) > MOST_POINTS:
            raise ConfigError(
                f"this study has more than {MOST_POINTS} points: give it in parts, each a command of its own"
            )
        for point in cell.points():
            known = wanted.get(point.key)
            if known is None:
                wanted[point.key] = Wanted(point, cell, list(cell.experiments))
            else:
                _refuse_collapse(known, cell)
                known.experiments += [name for name in cell.experiments if name not in known.experiments]
    return wanted


def _refuse_collapse(known: Wanted, cell: Cell) -> None:
    """Refuse cells that no point tells apart: one of them would stand for both.

    Raises:
        ConfigError: names the settings.
    """
    first, second = ({**unkeyed.of_cell(c), "server.url": c.config.server.url} for c in (known.cell, cell))
    if differences := unkeyed.changes(first, second):
        raise ConfigError(
            f"two configurations of this sweep are one point, {known.point.label}: in the second "
            f"{differences}; measure each by a command with a results= folder of its own"
        )


def group(wanted: Iterable[Wanted]) -> list[Group]:
    """Group points by server, in the order in which they were first asked for."""
    everything = list(wanted)
    lengths = _context_lengths(everything)
    groups: dict[tuple[Any, ...], list[Wanted]] = {}
    for member in everything:
        point, config = member.point, member.cell.config
        fields = tuple(getattr(point, name) for name in _SERVER_FIELDS)
        # A batch and a single request want different memory fractions on a GPU.
        crowded = (point.batch > 1 or point.shared_prefill) and config.hardware.device != "cpu"
        groups.setdefault((*fields, _server_probe(point), crowded, repr(config.server)), []).append(member)
    made = []
    for members in groups.values():
        spec = server_spec(members[0].cell, [m.point for m in members], lengths[members[0].point.model])
        server = members[0].cell.config.server
        made.append(
            Group(
                _boot_id(spec, server),
                spec,
                server,
                str(members[0].cell.tokenizer_path),
                tuple(members),
            )
        )
    return made


def _context_lengths(wanted: Sequence[Wanted]) -> dict[str, int]:
    """One context length for all arms of a model."""
    lengths: dict[str, int] = {}
    for member in wanted:
        point = member.point
        needed = context_length_for(point.context_tokens, point.max_new_tokens, MAX_DEPTH)
        lengths[point.model] = max(needed, lengths.get(point.model, 0))
    return lengths


def _boot_id(spec: ServerSpec, server: ServerConfig) -> str:
    body = orjson.dumps([asdict(spec), asdict(server)], option=orjson.OPT_SORT_KEYS)
    # The letter keeps Hydra from reading digits with an e as a number.
    return "b" + hashlib.sha256(body).hexdigest()[:9]


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
        probe=_server_probe(first),
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


def _server_probe(point: Point) -> str | None:
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


def refusal(member: Wanted) -> Refusal | None:
    """What is ruled out for a point before any server starts; None where nothing."""
    if _server_probe(member.point) is not None and (reason := _no_probe(member)):
        return Refusal(Outcome.INVALID, reason)
    checkpoint = member.cell.checkpoint
    if checkpoint is None:
        return None
    problems = preflight(
        checkpoint,
        speculative=member.point.arm in SPECULATIVE_ARMS,
        context_length=context_length_for(
            member.point.context_tokens, member.point.max_new_tokens, member.point.depth
        ),
        yarn_factor=member.cell.config.model.yarn_factor,
        native_context_tokens=member.cell.config.model.native_context_tokens,
    )
    if problems:
        return Refusal(problems[0].outcome, problems[0].message)
    unfit = checkpoint.tokenizer_problem
    return Refusal(Outcome.INVALID, unfit) if unfit else None


def _no_probe(member: Wanted) -> str:
    """Why a point's probe cannot run; empty where it can."""
    point, server = member.point, member.cell.config.server
    if point.arm == "dense":
        return f"probe={point.probe} looks at a draft, and arm=dense has none"
    if point.probe in NATIVE_ONLY and point.arm != "native":
        return f"probe={point.probe} needs the draft's keys at full length: use arm=native, not {point.arm}"
    if server.kind == "url":
        return (
            f"probe={point.probe} must be given to a server when it starts: let the harness start it "
            "(server.kind=local) instead of server.kind=url"
        )
    return ""
