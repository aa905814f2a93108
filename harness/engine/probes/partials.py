"""Softmax attention in pieces: sums over disjoint sets of keys, put together exactly, in float32.

For one query, logits z_k = scale * q.k_k and values v_k, a set of keys with largest logit m is summed up as

    weight = sum e^(z_k - m)             square = sum e^(2 (z_k - m))
    slope  = sum e^(z_k - m) (z_k - m)   read   = sum e^(z_k - m) v_k

Two disjoint sets are put together by moving both to the larger m (online softmax, arXiv:1805.02867). Within
a set, with shares p_k = e^(z_k - m) / weight: entropy -sum p log p = log(weight) - slope / weight,
participation 1 / sum p^2 = weight^2 / square, read-out sum p v = read / weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch import Tensor

EMPTY_PEAK = -1e30
"""Largest logit of no keys: finite, so that differences of two stay numbers."""


@contextmanager
def exact_float32() -> Iterator[None]:
    """Float32 products in full precision, also where the server lets a GPU round them to TensorFloat-32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class Partial:
    """Sums over sets of keys, float32.

    Attributes:
        peak, weight, square, slope: [..., heads].
        read: [..., heads, value_dim].
    """

    peak: Tensor
    weight: Tensor
    square: Tensor
    slope: Tensor
    read: Tensor

    @property
    def output(self) -> Tensor:
        """Attention's read-out over these keys alone, [..., heads, value_dim]; zero where there are none."""
        return self.read / self.weight.clamp_min(torch.finfo(torch.float32).tiny)[..., None]

    @property
    def entropy_nats(self) -> Tensor:
        """Entropy of the shares within the set, [..., heads]; NaN where it is empty."""
        return self.weight.log() - self.slope / self.weight

    @property
    def participation_keys(self) -> Tensor:
        """How many equally weighted keys would be as concentrated, [..., heads]; NaN where it is empty."""
        return self.weight.square() / self.square

    def share_of(self, whole: Partial) -> Tensor:
        """Softmax mass of the set within `whole`, [..., heads] (shapes broadcast)."""
        return self.weight * (self.peak - whole.peak).exp() / whole.weight


def over_keys(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    logit_cap: float = 0.0,
    visible: Tensor | None = None,
) -> Partial:
    """The sums over one set of keys.

    Args:
        query: [rows, heads, head_dim]; query head h reads key head h // (heads / kv_heads).
        keys, values: [n, kv_heads, head_dim] and [n, kv_heads, value_dim], float32.
        logit_cap: c > 0 replaces a logit z by c * tanh(z / c).
        visible: [rows, n] keys that each row sees; None for all.

    Returns:
        Sums of shape [rows, heads].
    """
    rows, heads, head_dim = query.shape
    count, kv_heads, value_dim = values.shape
    if count == 0:
        return _empty(query, value_dim)
    group = heads // kv_heads
    grouped = (
        query.float().view(rows, kv_heads, group, head_dim).transpose(0, 1).reshape(kv_heads, -1, head_dim)
    )
    logits = torch.bmm(grouped, keys.permute(1, 2, 0)).mul_(scale)
    if logit_cap > 0:
        logits = torch.tanh(logits / logit_cap).mul_(logit_cap)
    if visible is not None:
        logits = logits.masked_fill(~visible.repeat_interleave(group, 0), EMPTY_PEAK)
    peak = logits.amax(-1)
    shifted = logits.sub_(peak[..., None])
    weights = shifted.exp()
    if visible is not None:
        # A row that sees none of them has its peak at EMPTY_PEAK and would count each as one.
        weights = weights * visible.repeat_interleave(group, 0)
    sums = (peak, weights.sum(-1), weights.square().sum(-1), (weights * shifted).sum(-1))
    read = torch.bmm(weights, values.transpose(0, 1))
    peak, weight, square, slope = (
        total.view(kv_heads, rows, group).transpose(0, 1).reshape(rows, heads) for total in sums
    )
    read = read.view(kv_heads, rows, group, value_dim).transpose(0, 1).reshape(rows, heads, value_dim)
    return Partial(peak, weight, square, slope, read)


def _empty(query: Tensor, value_dim: int) -> Partial:
    rows, heads, _ = query.shape
    zero = torch.zeros((rows, heads), dtype=torch.float32, device=query.device)
    return Partial(zero + EMPTY_PEAK, zero, zero, zero, zero[..., None].expand(-1, -1, value_dim))


def stack(pieces: Sequence[Partial]) -> Partial:
    """Pieces as one `Partial` with a leading dimension."""
    return Partial(*(torch.stack([getattr(p, f.name) for p in pieces]) for f in fields(Partial)))


def combine(pieces: Partial, member: Tensor) -> Partial:
    """Unions of pieces.

    Args:
        pieces: [pieces, rows, heads] sums over disjoint sets.
        member: [sets, pieces] bool, which pieces belong to each union.

    Returns:
        [sets, rows, heads] sums.
    """
    chosen = member[:, :, None, None]
    peak = torch.where(chosen, pieces.peak, EMPTY_PEAK).amax(1)
    moved = torch.where(chosen, pieces.peak - peak[:, None], EMPTY_PEAK)
    factor = moved.exp()
    return Partial(
        peak=peak,
        weight=(factor * pieces.weight).sum(1),
        square=(factor.square() * pieces.square).sum(1),
        slope=(factor * (pieces.slope + moved * pieces.weight)).sum(1),
        read=torch.einsum("sprh,prhd->srhd", factor, pieces.read),
    )


def union(pieces: Sequence[Partial]) -> Partial:
    """All pieces as one set: [rows, heads] sums."""
    if len(pieces) == 1:
        return pieces[0]
    device = pieces[0].peak.device
    whole = combine(stack(pieces), torch.ones((1, len(pieces)), dtype=torch.bool, device=device))
    return Partial(*(getattr(whole, f.name)[0] for f in fields(Partial)))
