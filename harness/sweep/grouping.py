"""Cells grouped into boots: as few servers as their settings allow, each point once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from harness.compose import Cell
from harness.config import ServerConfig
from harness.engine.probes.settings import NATIVE_ONLY
from harness.errors import ConfigError
from harness.models.checkpoint import preflight
from harness.points import SPECULATIVE_ARMS, Point
from harness.records import Outcome
from harness.server.capacity import context_length_for
from harness.server.spec import ServerSpec
from harness.sweep import unkeyed
from harness.sweep.servers import MAX_DEPTH, server_probe, server_spec

MOST_POINTS = 20_000

# What two points must share to run on one server.
_SERVER_FIELDS = (
    "model", "checkpoint", "hardware", "arm", "depth", "window_tokens", "sink_tokens", "tp",
    "dtype", "kv_dtype", "draft_backend", "prune_draft_prefill", "kv_budget_mib",
)  # fmt: skip


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
        groups.setdefault((*fields, server_probe(point), crowded, repr(config.server)), []).append(member)
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


def refusal(member: Wanted) -> Refusal | None:
    """What is ruled out for a point before any server starts; None where nothing."""
    if server_probe(member.point) is not None and (reason := _no_probe(member)):
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
