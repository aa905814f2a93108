"""A draft layer whose attention is known: it looks a fixed number of places back, and nowhere else.

Queries and keys are the same for every token, so that a score depends on the distance alone. With rotary
frequencies w_i, a query turned back by D places gives, at distance d, the score

    strength * mean_i cos(w_i (d - D)),

which has its peak at d = D; no other distance below 9000 comes near it. Values carry the token's embedding,
the output projection outweighs the residual, and the feed-forward is silent: the draft proposes (nearly
always) the token that it looks at. So what a window must do to it can be told in advance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harness.engine.tiny.config import TinyConfig
from harness.errors import ConfigError

Tensors = dict[str, Tensor]
INSIDE_PLACES = 20
OUTSIDE_PLACES = 600
READ_GAIN = 20.0
"""|W_o o| / |h|, norms of what attention adds and of the residual, where one key has all the mass."""
_STRENGTH = 200.0
_LAYER = "mtp.layers.0."
# Queries and keys are read off this coordinate, and normalised: only its sign must be the same for all.
_STEADY = -1
_STEADY_GAIN = 10.0


def looking_back(config: TinyConfig, tensors: Tensors, places: int) -> Tensors:
    """The draft's changed tensors; those of norms are distances from one.

    Raises:
        ConfigError: the embedding has no coordinate that is positive for every token.
    """
    if not bool((tensors["model.embed_tokens.weight"][:, _STEADY] > 0).all()):
        raise ConfigError(
            "This draft is made from a checkpoint whose embedding has a steady last coordinate."
        )
    hidden, size = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    half = config.rotary_size // 2
    frequencies = config.rope_theta ** (-torch.arange(half) / half)
    query = torch.zeros(heads, 2, size, hidden)
    query[:, 0, :half, _STEADY] = _STEADY_GAIN * torch.cos(frequencies * places)
    query[:, 0, half : 2 * half, _STEADY] = -_STEADY_GAIN * torch.sin(frequencies * places)
    key = torch.zeros(kv_heads, size, hidden)
    key[:, :half, _STEADY] = _STEADY_GAIN
    # Heads beyond the embedding's width repeat it, unread, so that no head's read-out is zero.
    value = torch.eye(hidden).repeat(math.ceil(kv_heads * size / hidden), 1)[: kv_heads * size]
    out = torch.zeros(hidden, heads, size)
    # Each key head is read back once, by its first query head; gates stand at one half.
    for kv_head in range(math.ceil(hidden / size)):
        width = min(size, hidden - kv_head * size)
        rows = torch.arange(width)
        out[kv_head * size + rows, kv_head * (heads // kv_heads), rows] = 2 * READ_GAIN
    factor = math.sqrt(_STRENGTH / math.sqrt(size))
    return {
        "mtp.fc.weight": torch.eye(hidden, 2 * hidden),
        "mtp.pre_fc_norm_embedding.weight": torch.zeros(hidden),
        "mtp.norm.weight": torch.zeros(hidden),
        _LAYER + "input_layernorm.weight": torch.zeros(hidden),
        _LAYER + "self_attn.q_proj.weight": query.reshape(-1, hidden),
        _LAYER + "self_attn.k_proj.weight": key.reshape(-1, hidden),
        _LAYER + "self_attn.v_proj.weight": value,
        _LAYER + "self_attn.o_proj.weight": out.reshape(hidden, -1),
        _LAYER + "self_attn.q_norm.weight": torch.full((size,), factor - 1),
        _LAYER + "self_attn.k_norm.weight": torch.full((size,), factor - 1),
        _LAYER + "mlp.down_proj.weight": torch.zeros_like(tensors[_LAYER + "mlp.down_proj.weight"]),
    }
