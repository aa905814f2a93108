"""Norm, rotary attention with an output gate, and the feed-forwards of the tiny hybrid."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.engine.tiny.config import TinyConfig

Rotation = tuple[Tensor, Tensor]


class Norm(nn.Module):
    """RMS norm whose weight is stored as its distance from one."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., size]."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


def rotation(config: TinyConfig, positions: Tensor) -> Rotation:
    """Cosines and sines for `positions` [..., tokens]; each is [..., tokens, 1, rotary_size / 2]."""
    size = config.rotary_size
    powers = torch.arange(0, size, 2, device=positions.device).float() / size
    angle = positions.float()[..., None, None] * config.rope_theta**-powers
    return angle.cos(), angle.sin()


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Rotary embedding of the first `rotary_size` dimensions, half with half; x: [..., heads, size]."""
    cos, sin = by
    half = cos.shape[-1]
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class Attention(nn.Module):
    """Causal attention with normalised, rotated queries and keys and a sigmoid gate on its output."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, 2 * self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=False)
        self.q_norm = Norm(self.size, config.rms_norm_eps)
        self.k_norm = Norm(self.size, config.rms_norm_eps)

    def project(self, x: Tensor, by: Rotation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values and gate: [batch, tokens, heads or kv_heads, head_dim]."""
        lead = x.shape[:-1]
        q, gate = self.q_proj(x).view(*lead, self.heads, 2, self.size).unbind(-2)
        k = self.k_norm(self.k_proj(x).view(*lead, self.kv_heads, self.size))
        v = self.v_proj(x).view(*lead, self.kv_heads, self.size)
        return rotate(self.q_norm(q), by), rotate(k, by), v, gate

    def finish(self, attended: Tensor, gate: Tensor) -> Tensor:
        """Gate and output projection; both arguments are [batch, tokens, heads, head_dim]."""
        return self.o_proj((attended * torch.sigmoid(gate)).flatten(-2))

    def forward(self, x: Tensor, by: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """x: [batch, tokens, hidden]; returns the output, the keys and the values."""
        q, k, v, gate = self.project(x, by)
        qh, kh, vh = (t.transpose(1, 2) for t in (q, k, v))
        grouped = self.heads != self.kv_heads
        attended = F.scaled_dot_product_attention(qh, kh, vh, is_causal=True, enable_gqa=grouped)
        return self.finish(attended.transpose(1, 2), gate), k, v


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., hidden]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """Weights of all experts, stacked as the checkpoint stores them."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        count, hidden, inner = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(count, hidden, inner))


class MixtureOfExperts(nn.Module):
    """Top-k routed experts and a gated shared one. Every expert runs on every token: fine for a few."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = Experts(config)
        self.shared_expert = FeedForward(config.hidden_size, config.shared_expert_intermediate_size)
        self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False)
        self.chosen = config.num_experts_per_tok

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., hidden]."""
        odds = self.gate(x).softmax(-1)
        top, index = odds.topk(self.chosen, -1)
        share = torch.zeros_like(odds).scatter(-1, index, top / top.sum(-1, keepdim=True))
        gate, up = torch.einsum("...h,eoh->...eo", x, self.experts.gate_up_proj).chunk(2, -1)
        routed = torch.einsum("...ei,ehi,...e->...h", F.silu(gate) * up, self.experts.down_proj, share)
        return routed + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)


def feed_forward(config: TinyConfig) -> nn.Module:
    """The configured feed-forward."""
    if config.num_experts:
        return MixtureOfExperts(config)
    return FeedForward(config.hidden_size, config.intermediate_size)
