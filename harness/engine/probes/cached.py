"""The draft's cached keys and values, by position and in float32, and attention over chosen ones of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.engine.probes.partials import Partial, exact_float32, over_keys, union

CHUNK_KEYS = 16384
"""Keys that are in float32 at a time: the memory a probe needs does not grow with the context."""


@dataclass(frozen=True)
class CachedKeys:
    """One request's keys and values in one layer of the pool.

    Attributes:
        slots: [positions] slots of the request's positions, its row of `req_to_token`.
        keys, values: [slots, kv_heads, head_dim] and [slots, kv_heads, value_dim], of any float type.
        key_scale, value_scale: factors that undo the pool's quantisation.
    """

    slots: Tensor
    keys: Tensor
    values: Tensor
    key_scale: float = 1.0
    value_scale: float = 1.0

    @classmethod
    def of(cls, runner: Any, layer: Any, row: int) -> CachedKeys:
        """The keys of request row `row` in `layer` (a `RadixAttention`) of the runner's own pool."""
        pool = runner.token_to_kv_pool
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        quantised = keys.element_size() == 1
        return cls(
            runner.req_to_token_pool.req_to_token[row],
            keys,
            values,
            float(layer.k_scale_float or 1.0) if quantised else 1.0,
            float(layer.v_scale_float or 1.0) if quantised else 1.0,
        )

    def read(self, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values [end - first, kv_heads, ...] of positions first .. end - 1, float32."""
        slots = self.slots[first:end].to(torch.int64)
        keys, values = self.keys[slots].float(), self.values[slots].float()
        if self.key_scale != 1.0:
            keys = keys.mul_(self.key_scale)
        if self.value_scale != 1.0:
            values = values.mul_(self.value_scale)
        return keys, values

    def partials(self, query: Tensor, run: range, scale: float, logit_cap: float = 0.0) -> Iterator[Partial]:
        """Sums of `query` [rows, heads, head_dim] over a range of positions, CHUNK_KEYS at a time."""
        for start in range(run.start, run.stop, CHUNK_KEYS):
            keys, values = self.read(start, min(start + CHUNK_KEYS, run.stop))
            yield over_keys(query, keys, values, scale, logit_cap)


def attend(
    query: Tensor,
    cached: CachedKeys,
    ranges: Iterable[range],
    own_keys: Tensor,
    own_values: Tensor,
    scale: float,
    logit_cap: float = 0.0,
) -> Tensor:
    """Attention of a forward's own tokens over chosen cached positions and, causally, over each other.

    Args:
        query: [rows, heads, head_dim], consecutive positions.
        ranges: disjoint ranges of cached positions, which every row sees.
        own_keys, own_values: [rows, kv_heads, ...], row r of which the rows from r on see.

    Returns:
        [rows, heads, value_dim] float32.
    """
    rows = query.shape[0]
    causal = torch.ones((rows, rows), dtype=torch.bool, device=query.device).tril() if rows > 1 else None
    with exact_float32():
        pieces = [over_keys(query, own_keys.float(), own_values.float(), scale, logit_cap, causal)]
        for kept in ranges:
            pieces += cached.partials(query, kept, scale, logit_cap)
        return union(pieces).output
