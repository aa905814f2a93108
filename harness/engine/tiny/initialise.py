"""Initial weights from which a small model finds retrieval in minutes instead of hours.

Induction (look for the last place where the present n-gram stood, read what followed) needs a layer that
sees the previous tokens and one that matches on them. Random weights find this pair only after a long
plateau, so both begin near it: queries and keys share weights, and a delta rule layer compares a query's
n-gram with the n-gram before each key. The output head begins as the embedding, so that a copied token is
said without having been learnt.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harness.engine.tiny.delta_net import DeltaNet
from harness.engine.tiny.layers import Attention
from harness.engine.tiny.model import TinyHybrid

_GATE_COORDINATE = -1
_EMBEDDING_SPREAD = 0.05


@torch.no_grad()
def initialise(model: TinyHybrid, seed: int) -> None:
    """Fill all weights of `model` in place, from `seed` alone."""
    random = torch.Generator().manual_seed(seed)
    layers = model.config.num_hidden_layers
    for name, weight in sorted(model.named_parameters()):
        if weight.dim() < 2:
            continue
        if name.endswith("embed_tokens.weight"):
            weight.copy_(_normal(weight, _EMBEDDING_SPREAD, random))
            # A coordinate that is the same for every token lets gates start open without a bias.
            weight[:, _GATE_COORDINATE] = 2.5 * _EMBEDDING_SPREAD
            continue
        spread = weight.shape[-1] ** -0.5
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
            spread /= math.sqrt(2 * layers)
        weight.copy_(_normal(weight, spread, random))
    # What was read can be said at once: copying a rare word needs no training on that word.
    model.lm_head.weight.copy_(
        model.model.embed_tokens.weight * (2 / model.config.hidden_size**0.5 / _EMBEDDING_SPREAD)
    )
    model.lm_head.weight[:, _GATE_COORDINATE] = 0.0
    for module in model.modules():
        if isinstance(module, DeltaNet):
            _prepare_delta_net(module, random)
        elif isinstance(module, Attention):
            _prepare_attention(module)


def _normal(like: Tensor, spread: float, random: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=random) * spread


def _prepare_attention(attention: Attention) -> None:
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight.fill_(0.6)
    heads, kv_heads, size = attention.heads, attention.kv_heads, attention.size
    q = attention.q_proj.weight.view(kv_heads, heads // kv_heads, 2, size, -1)
    k = attention.k_proj.weight.view(kv_heads, 1, size, -1)
    q[:, :, 0] = (q[:, :, 0] + k) * 0.7
    q[:, :, 1, :, _GATE_COORDINATE] = 1.0


def _prepare_delta_net(layer: DeltaNet, random: torch.Generator) -> None:
    config = layer.config
    keys, value_head = config.linear_key_size, config.linear_value_head_dim
    layer.in_proj_z.weight.mul_(0.3)
    layer.in_proj_z.weight[:, _GATE_COORDINATE] = 1.0
    layer.in_proj_b.weight.mul_(0.3)
    layer.in_proj_b.weight[:, _GATE_COORDINATE] = 0.5
    layer.in_proj_qkv.weight[keys : 2 * keys] = layer.in_proj_qkv.weight[:keys]
    taps = layer.conv1d.weight[:, 0]
    taps.copy_(torch.rand(taps.shape, generator=random) * 0.2 - 0.1)
    taps[:keys] += torch.tensor([0.0, 0.3, 0.6, 1.0])
    taps[keys : 2 * keys] += torch.tensor([0.3, 0.6, 1.0, 0.0])
    taps[2 * keys :, -1] += 1.0
    # One value head carries what changed since the token before.
    taps[2 * keys + value_head : 2 * keys + 2 * value_head] += torch.tensor([0.0, 0.0, 1.0, -1.0])
    heads = layer.A_log.numel()
    layer.A_log.copy_(torch.linspace(1.0, 0.05, heads).log())
    step = torch.linspace(math.log(0.001), math.log(0.1), heads).exp()
    layer.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
