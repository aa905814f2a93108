"""Normalisation and gating of gated-attention and gated-delta-rule layers (Qwen3-Next, Qwen3.5).

RMSNorm (arXiv:1910.07467): x / sqrt(mean(x^2) + eps), times the weight; Gemma's form stores the weight less
one. All are evaluated in float32 and returned in the input's dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

OPERATORS = (
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_rmsnorm_gated_cpu",
    "fused_sigmoid_mul_cpu",
)


def fused_sigmoid_mul_cpu(x: Tensor, gate: Tensor) -> None:
    """In place: x *= sigmoid(gate), the output gate of gated attention (arXiv:2505.06708)."""
    x.mul_(torch.sigmoid(gate.float()).view(x.shape))


def fused_qk_gemma_rmsnorm_cpu(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int
) -> tuple[Tensor, Tensor]:
    """Gemma RMSNorm of each head: q, k [tokens, heads * head_dim] -> [tokens * heads, head_dim]."""
    return (
        _gemma_rms_norm(q.reshape(-1, head_dim), q_weight, eps),
        _gemma_rms_norm(k.reshape(-1, head_dim), k_weight, eps),
    )


def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same where each query head is followed by its gate.

    Args:
        q_gate: [tokens, num_heads * 2 * head_dim], per head the query, then the gate.

    Returns:
        query and gate [tokens * num_heads, head_dim], key [tokens * kv_heads, head_dim], as (q, k, gate).
    """
    pairs = q_gate.reshape(-1, 2, head_dim)
    query = _gemma_rms_norm(pairs[:, 0], q_weight, eps)
    return query, _gemma_rms_norm(k.reshape(-1, head_dim), k_weight, eps), pairs[:, 1].contiguous()


def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    mixed_qkvz: Tensor, mixed_ba: Tensor, num_k_heads: int, num_v_heads: int, head_k_dim: int, head_v_dim: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Split the two input projections of a gated-delta-rule layer.

    Args:
        mixed_qkvz: [tokens, q | k | v | z], each block head by head.
        mixed_ba: [tokens, b | a], one value per value head.

    Returns:
        q|k|v [tokens, ...] contiguous, z [tokens, num_v_heads, head_v_dim], b and a [tokens, num_v_heads].
    """
    tokens = mixed_qkvz.shape[0]
    width = 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim
    return (
        mixed_qkvz[:, :width].contiguous(),
        mixed_qkvz[:, width:].reshape(tokens, num_v_heads, head_v_dim),
        mixed_ba[:, :num_v_heads].contiguous(),
        mixed_ba[:, num_v_heads:].contiguous(),
    )


def fused_rmsnorm_gated_cpu(x: Tensor, weight: Tensor, z: Tensor | None, eps: float) -> Tensor:
    """rms_norm(x) * weight * silu(z), the output norm of a gated-delta-rule layer; x, z [rows, head_dim]."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
    if z is not None:
        normed = normed * functional.silu(z.float())
    return normed.to(x.dtype)


def _gemma_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed * (weight.float() + 1.0)).to(x.dtype)
