"""The tiny hybrid and its multi-token-prediction (draft) layer; parameter names are the checkpoint's."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from harness.engine.tiny.config import TinyConfig
from harness.engine.tiny.delta_net import DeltaNet
from harness.engine.tiny.layers import Attention, Norm, Rotation, feed_forward, rotation


class Layer(nn.Module):
    """A pre-norm layer: token mixer, then feed-forward."""

    def __init__(self, config: TinyConfig, full: bool) -> None:
        super().__init__()
        if full:
            self.self_attn = Attention(config)
        else:
            self.linear_attn = DeltaNet(config)
        self.full = full
        self.mlp = feed_forward(config)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def feed(self, x: Tensor) -> Tensor:
        """The second half of the layer; x: [batch, tokens, hidden]."""
        return x + self.mlp(self.post_attention_layernorm(x))

    def forward(self, x: Tensor, by: Rotation) -> Tensor:
        """x: [batch, tokens, hidden]; the same shape comes back."""
        normed = self.input_layernorm(x)
        mixed = self.self_attn(normed, by)[0] if self.full else self.linear_attn(normed)
        return self.feed(x + mixed)


class Trunk(nn.Module):
    """Embedding, hidden layers, final norm."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, kind == "full_attention") for kind in config.layer_types)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)


@dataclass
class DraftCache:
    """Keys and values a draft chain sees.

    Attributes:
        keys, values: of all positions, from target states: [batch, tokens, kv_heads, head_dim].
        own_keys, own_values: of the chains' own earlier steps, each [batch, chains, kv_heads, head_dim].
    """

    keys: Tensor
    values: Tensor
    own_keys: list[Tensor] = field(default_factory=list)
    own_values: list[Tensor] = field(default_factory=list)


class Draft(nn.Module):
    """The draft layer: a token and the state before it give the state that predicts the token after it."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.pre_fc_norm_embedding = Norm(config.hidden_size, config.rms_norm_eps)
        self.pre_fc_norm_hidden = Norm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(config, full=True)])
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)

    def _entry(self, embedded: Tensor, state: Tensor) -> Tensor:
        joined = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(state)]
        return self.fc(torch.cat(joined, -1))

    def first(self, embedded: Tensor, state: Tensor, positions: Tensor) -> tuple[Tensor, DraftCache]:
        """Draft step 1 at every position at once.

        Args:
            embedded: [batch, tokens, hidden], embedding of token i + 1 at place i.
            state: [batch, tokens, hidden], target state of token i at place i.
            positions: [batch, tokens], of token i.

        Returns:
            States that predict token i + 2, and the keys and values later steps read.
        """
        layer = self.layers[0]
        x = self._entry(embedded, state)
        mixed, keys, values = layer.self_attn(layer.input_layernorm(x), rotation(self.config, positions))
        return self.norm(layer.feed(x + mixed)), DraftCache(keys, values)

    def next(
        self, embedded: Tensor, state: Tensor, positions: Tensor, base: Tensor, cache: DraftCache
    ) -> Tensor:
        """One further step of some chains, each started at place `base`; the cache grows by it.

        Args:
            embedded: [batch, chains, hidden], of the token fed.
            state: [batch, chains, hidden], the chain's state one step before.
            positions: [batch, chains].
            base: [batch, chains], the place in `cache.keys` that each chain started at.
        """
        layer, attention = self.layers[0], self.layers[0].self_attn
        x = self._entry(embedded, state)
        q, k, v, gate = attention.project(layer.input_layernorm(x), rotation(self.config, positions))
        cache.own_keys.append(k)
        cache.own_values.append(v)
        own_k, own_v = torch.stack(cache.own_keys, 2), torch.stack(cache.own_values, 2)
        batch, chains, heads, size = q.shape
        grouped = q.view(batch, chains, k.shape[2], heads // k.shape[2], size)
        far = torch.einsum("bckgd,bnkd->bkgcn", grouped, cache.keys)
        tokens = far.shape[-1]
        future = torch.arange(tokens, device=base.device) > base[..., None]
        far = far.masked_fill(future[:, None, None], float("-inf"))
        near = torch.einsum("bckgd,bcskd->bkgcs", grouped, own_k)
        weight = (torch.cat([far, near], -1) * size**-0.5).softmax(-1)
        attended = torch.einsum("bkgcn,bnkd->bckgd", weight[..., :tokens], cache.values)
        attended = attended + torch.einsum("bkgcs,bcskd->bckgd", weight[..., tokens:], own_v)
        return self.norm(layer.feed(x + attention.finish(attended.reshape(q.shape), gate)))


class TinyHybrid(nn.Module):
    """Trunk, output head and draft layer."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.mtp = Draft(config)

    def states(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Normalised last states [batch, tokens, hidden] of `ids` [batch, tokens]."""
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        by = rotation(self.config, positions)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, by)
        return self.model.norm(x)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits [batch, tokens, vocabulary] of `ids` [batch, tokens]."""
        return self.lm_head(self.states(ids, positions))
