"""Where one query's attention lies among its keys, and what reading fewer of them would change.

For softmax shares p_k over all keys k that a draft query reads, and for each window (W, n_sink): the keys it
keeps (sink, the W most recent committed ones, what this step itself wrote) against the tail, the rest. With
read-outs o = sum p_k v_k over all keys, o_w the same over the kept ones with their shares summing to one
again (what a windowed draft computes) and o_t the tail's own part of o:

    mass = sum of kept p_k    perturbation = |o - o_w| / |o|    tail share = |o_t| / |o|

(arXiv:2607.21535, section 5 and table 12.) Everything is computed from the cached keys in float32, without
the attention kernel, a bounded number of keys at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from harness.engine.geometry import RingGeometry
from harness.engine.probes.cached import CachedKeys
from harness.engine.probes.partials import Partial, combine, exact_float32, stack, union

Window = tuple[int, int]
"""W and n_sink, tokens."""


@dataclass(frozen=True)
class Layout:
    """A query's keys cut into runs, so that every set that is asked for is a union of some.

    Attributes:
        runs: consecutive ranges of positions, first to last key.
        kept: per window, the ranges that it keeps.
        nearer: ranges of the keys at distance 0, 1, 2-3, 4-7, ... from the query, the sink left out.
        sink: the first keys, of the first window's size.
    """

    runs: tuple[range, ...]
    kept: tuple[tuple[range, ...], ...]
    nearer: tuple[range, ...]
    sink: range

    @classmethod
    def of(cls, committed: int, position: int, windows: Sequence[Window]) -> Layout:
        """The layout of a query at `position`, once the positions below `committed` were decided."""
        keys = position + 1
        own = range(committed, keys)
        kept = tuple((*RingGeometry(sink, w, 1).kept(committed, committed - w), own) for w, sink in windows)
        sink = kept[0][0]
        nearer = tuple(
            range(max(keys - high, sink.stop), max(keys - low, sink.stop))
            for low, high in pairwise(distance_edges(keys))
        )
        cuts = {0, keys}
        for part in (sink, *nearer, *(r for ranges in kept for r in ranges)):
            cuts |= {part.start, part.stop}
        ends = sorted(cuts)
        return cls(tuple(range(*ends_of_run) for ends_of_run in pairwise(ends)), kept, nearer, sink)

    def member(self, sets: Iterable[Iterable[range]]) -> list[list[bool]]:
        """[sets][runs]: whether the set, a union of ranges, holds the run."""
        return [
            [any(part.start <= run.start and run.stop <= part.stop for part in ranges) for run in self.runs]
            for ranges in sets
        ]


def distance_edges(keys: int) -> tuple[int, ...]:
    """0, 1, 2, 4, ... up to the first that is not below `keys`."""
    edges = [0, 1]
    while edges[-1] < keys:
        edges.append(2 * edges[-1])
    return tuple(edges)


def measure(
    query: Tensor,
    cached: CachedKeys,
    committed: int,
    position: int,
    windows: Sequence[Window],
    *,
    scale: float,
    logit_cap: float = 0.0,
    output: Tensor | None = None,
) -> dict[str, Any]:
    """One query's attention, means over its heads.

    Args:
        query: [heads, head_dim], as the attention kernel gets it.
        committed: positions 0 .. committed - 1 were decided before this step.
        position: the query's own position, whose key is cached already.
        windows: what to compare with; the first one's sink is left out of the distances.
        output: [heads, value_dim] what the attention kernel answered, to compare with.

    Returns:
        `windows`: per window `window_tokens`, `sink_tokens`, `mass`, `perturbation` and `tail_share` (ratios
        of norms a head), `perturbation_joint` and `tail_share_joint` (of all heads' read-outs as one vector),
        `tail_keys`, and of the tail's shares `tail_entropy_nats` and `tail_participation_keys`, None where
        there is no tail; `distance_mass`: mass at distance 0, 1, 2-3, 4-7, ..., sink left out; `sink_mass`;
        `kernel_difference`: |o - output| / |o| of all heads, None without `output`.
    """
    layout = Layout.of(committed, position, windows)
    everything = [range(position + 1)]
    tails = [[not kept for kept in row] for row in layout.member(layout.kept)]
    member = [
        *layout.member([everything, *layout.kept]),
        *tails,
        *layout.member([[layout.sink], *([part] for part in layout.nearer)]),
    ]
    with exact_float32():
        runs = [union([*cached.partials(query[None], run, scale, logit_cap)]) for run in layout.runs]
        sets = combine(stack(runs), torch.tensor(member, device=query.device))
    whole = _at(sets, slice(0, 1))
    count = len(windows)
    kept, tail = _at(sets, slice(1, 1 + count)), _at(sets, slice(1 + count, 1 + 2 * count))
    mass = sets.share_of(whole)[:, 0].mean(-1).tolist()
    measures = _window_measures(whole, kept, tail)
    shown = []
    for i, (window_tokens, sink_tokens) in enumerate(windows):
        tail_keys = sum(len(run) for run, inside in zip(layout.runs, tails[i], strict=True) if inside)
        values: dict[str, float | None] = {name: column[i] for name, column in measures.items()}
        if not tail_keys:
            values |= {"tail_entropy_nats": None, "tail_participation_keys": None}
        shown.append(
            {"window_tokens": window_tokens, "sink_tokens": sink_tokens, "mass": mass[1 + i],
             "tail_keys": tail_keys, **values}
        )  # fmt: skip
    far = mass[1 + 2 * count :]
    return {
        "windows": shown,
        "sink_mass": far[0],
        "distance_mass": far[1:],
        "kernel_difference": None if output is None else _difference(whole.output[0, 0], output),
    }


def _difference(ours: Tensor, theirs: Tensor) -> float:
    smallest = torch.finfo(torch.float32).tiny
    return float((ours - theirs.float()).norm() / ours.norm().clamp_min(smallest))


def _window_measures(whole: Partial, kept: Partial, tail: Partial) -> dict[str, list[float]]:
    full = whole.output[:, 0]  # [1, heads, value_dim]
    change = full - kept.output[:, 0]
    lost = tail.output[:, 0] * tail.share_of(whole)[:, 0, :, None]
    smallest = torch.finfo(torch.float32).tiny
    by_head = full.norm(dim=-1).clamp_min(smallest)
    joint = full.flatten(1).norm(dim=-1).clamp_min(smallest)
    columns = {
        "perturbation": (change.norm(dim=-1) / by_head).mean(-1),
        "perturbation_joint": change.flatten(1).norm(dim=-1) / joint,
        "tail_share": (lost.norm(dim=-1) / by_head).mean(-1),
        "tail_share_joint": lost.flatten(1).norm(dim=-1) / joint,
        "tail_entropy_nats": tail.entropy_nats[:, 0].mean(-1),
        "tail_participation_keys": tail.participation_keys[:, 0].mean(-1),
    }
    rows = torch.stack(list(columns.values())).tolist()  # one copy to the host
    return dict(zip(columns, rows, strict=True))


def _at(sets: Partial, index: int | slice) -> Partial:
    return Partial(
        sets.peak[index], sets.weight[index], sets.square[index], sets.slope[index], sets.read[index]
    )
