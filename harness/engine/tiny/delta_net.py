"""Gated delta rule layers, in the chunked form that trains in parallel over a sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.engine.tiny.config import TinyConfig


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, chunk: int = 64
) -> Tensor:
    """Outputs of the gated delta rule from an empty state.

    Per token: S <- exp(log_decay) S; S <- S + k (beta (v - S^T k))^T; output S^T q. Within a chunk all
    corrections are solved at once as a unit lower-triangular system (Yang et al., "Gated Delta Networks",
    2024, section 3.3); only one state update a chunk is sequential.

    Args:
        q, k: [sequences, tokens, key_size], already normalised and scaled.
        v: [sequences, tokens, value_size].
        log_decay, beta: [sequences, tokens].
        chunk: tokens solved at once.

    Returns:
        [sequences, tokens, value_size].
    """
    count, tokens, key_size = q.shape
    value_size = v.shape[-1]
    missing = -tokens % chunk
    chunks = (tokens + missing) // chunk

    def split(x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, 0, missing))
        return padded.reshape(count, chunks, chunk, x.shape[-1])

    q, k, v, beta = split(q), split(k), split(v), split(beta[..., None])
    total = split(log_decay[..., None])[..., 0].cumsum(-1)
    below = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    ratio = torch.exp((total[..., :, None] - total[..., None, :]).masked_fill(~below, float("-inf")))
    k_t = k.transpose(-1, -2)
    system = (k @ k_t * ratio * beta).tril(-1) + torch.eye(chunk, device=q.device)
    grown = torch.exp(total)[..., None]
    solved = torch.linalg.solve_triangular(
        system, torch.cat([beta * v, beta * grown * k], -1), upper=False, unitriangular=True
    )
    own, from_state = solved.split([value_size, key_size], -1)
    scores = q @ k_t * ratio
    q_grown = q * grown
    k_left = (k * torch.exp(total[..., -1:] - total)[..., None]).transpose(-1, -2)
    kept = torch.exp(total[..., -1])[..., None, None]

    state = q.new_zeros(count, key_size, value_size)
    corrections, carried = [], []
    for i in range(chunks):
        correction = own[:, i] - from_state[:, i] @ state
        corrections.append(correction)
        carried.append(q_grown[:, i] @ state)
        state = state * kept[:, i] + k_left[:, i] @ correction
    out = torch.stack(carried, 1) + scores @ torch.stack(corrections, 1)
    return out.reshape(count, chunks * chunk, value_size)[:, :tokens]


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


class GatedNorm(nn.Module):
    """RMS norm of each value head, times silu of the gate."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x and gate: [..., size]."""
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return normed * F.silu(gate)


class DeltaNet(nn.Module):
    """A gated delta rule layer with a short causal convolution; parameter names as in the checkpoint."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.linear_num_value_heads
        mixed = 2 * config.linear_key_size + config.linear_value_size
        self.in_proj_qkv = nn.Linear(hidden, mixed, bias=False)
        self.in_proj_z = nn.Linear(hidden, config.linear_value_size, bias=False)
        self.in_proj_b = nn.Linear(hidden, heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, heads, bias=False)
        self.conv1d = nn.Conv1d(mixed, mixed, config.linear_conv_kernel_dim, groups=mixed, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(heads))
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.norm = GatedNorm(config.linear_value_head_dim, config.rms_norm_eps)
        self.out_proj = nn.Linear(config.linear_value_size, hidden, bias=False)

    def _convolved(self, x: Tensor) -> Tensor:
        # Shifted multiply-adds: on a CPU faster than a depthwise conv1d.
        taps = self.conv1d.weight[:, 0]
        size, tokens = taps.shape[1], x.shape[1]
        padded = F.pad(x, (0, 0, size - 1, 0))
        mixed = padded[:, :tokens] * taps[:, 0]
        for tap in range(1, size):
            mixed = mixed + padded[:, tap : tap + tokens] * taps[:, tap]
        return F.silu(mixed)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, tokens, hidden]; the same shape comes back."""
        c = self.config
        batch, tokens, _ = x.shape
        key_heads, heads, key_size = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim
        q, k, v = self._convolved(self.in_proj_qkv(x)).split(
            [c.linear_key_size, c.linear_key_size, c.linear_value_size], -1
        )
        q = _unit(q.view(batch, tokens, key_heads, key_size)) * key_size**-0.5
        k = _unit(k.view(batch, tokens, key_heads, key_size))

        def by_head(t: Tensor) -> Tensor:
            return t.transpose(1, 2).reshape(batch * heads, tokens, *t.shape[3:])

        q, k = (by_head(t.repeat_interleave(heads // key_heads, 2)) for t in (q, k))
        log_decay = -self.A_log.exp() * F.softplus(self.in_proj_a(x) + self.dt_bias)
        out = gated_delta_rule(
            q, k, by_head(v.view(batch, tokens, heads, -1)), by_head(log_decay),
            by_head(torch.sigmoid(self.in_proj_b(x))),
        )  # fmt: skip
        out = out.view(batch, heads, tokens, -1).transpose(1, 2)
        gate = self.in_proj_z(x).view(batch, tokens, heads, -1)
        return self.out_proj(self.norm(out, gate).reshape(batch, tokens, -1))
