"""Attention the slow way, in float64 and one head at a time: what the probes' sums are checked against."""

from __future__ import annotations

import math

import numpy as np
import torch

from harness.engine.probes.cached import CachedKeys


def random_case(
    positions: int, heads: int = 4, kv_heads: int = 2, dim: int = 8, spread: float = 1.0, seed: int = 0
):
    """A query [heads, dim] and cached keys scattered over a pool, with their own order of positions."""
    draw = torch.Generator().manual_seed(seed)
    slots = torch.randperm(3 * positions, generator=draw)[:positions].to(torch.int32)
    keys = torch.randn((3 * positions, kv_heads, dim), generator=draw) * spread
    values = torch.randn((3 * positions, kv_heads, dim + 1), generator=draw)
    return torch.randn((heads, dim), generator=draw), CachedKeys(slots, keys, values)


def logits_and_values(query, cached, positions: int, scale: float, cap: float = 0.0):
    """[heads, positions] float64 logits and [heads, positions, value_dim] values."""
    heads, kv_heads = query.shape[0], cached.keys.shape[1]
    logits, values = [], []
    for head in range(heads):
        of = head // (heads // kv_heads)
        rows = []
        for p in range(positions):
            z = scale * float(
                np.dot(query[head].double().numpy(), cached.keys[int(cached.slots[p]), of].double().numpy())
            )
            rows.append(cap * math.tanh(z / cap) if cap else z)
        logits.append(rows)
        values.append([cached.values[int(cached.slots[p]), of].double().numpy() for p in range(positions)])
    return np.array(logits), np.array(values)


def shares(logits):
    """Softmax over the last axis."""
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def read_out(logits, values, seen):
    """[heads, value_dim]: attention over the seen positions alone."""
    p = shares(logits[:, seen])
    return np.einsum("hn,hnd->hd", p, values[:, seen])
