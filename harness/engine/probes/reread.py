"""A draft forward run once more with its reads restricted, leaving nothing behind.

Imports SGLang: loaded inside a server only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

from harness.engine.geometry import RingGeometry
from harness.engine.probes.cached import CachedKeys, attend
from harness.engine.probes.forwards import DraftForward

Window = tuple[int, int]


class RestrictedReads(AttentionBackend):
    """Attention of one draft forward over the positions that a window keeps, in float32; writes no keys.

    What the forward itself brings comes from its arguments, so that its place in the cache is not looked at;
    a decode forward also reads the keys that the step's earlier forwards wrote.

    Args:
        runner: the draft's `ModelRunner`, whose cache is read.
        forward: what the forward is.
        window: (W, n_sink); None reads everything, through the same sums: a control.
    """

    def __init__(self, runner: Any, forward: DraftForward, window: Window | None) -> None:
        super().__init__()
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.req_to_token_pool = runner.req_to_token_pool
        self._runner, self._forward = runner, forward
        self._ranges = [self._kept(i, window) for i in range(len(forward.rows))]

    def _kept(self, request: int, window: Window | None) -> tuple[range, ...]:
        committed = self._forward.committed[request]
        # The extend brings all tokens past the committed ones itself, a decode forward its last one.
        own = self._forward.positions[request] if self._forward.tokens_per_request == 1 else committed
        written = range(committed, own)
        if window is None:
            return range(committed), written
        tokens, sink = window
        return *RingGeometry(sink, tokens, 1).kept(committed, committed - tokens), written

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Nothing to plan."""

    def forward(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **extra: Any
    ) -> Any:
        """One layer's attention: [tokens, heads * value_dim] in the query's type."""
        if k is None or v is None or any(value is not None for value in extra.values()):
            raise NotImplementedError(f"attention of {layer.layer_id} with {sorted(extra)} or shared keys")
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        k = k.view(-1, layer.tp_k_head_num, layer.qk_head_dim)
        v = v.view(-1, layer.tp_v_head_num, layer.v_head_dim)
        each = self._forward.tokens_per_request
        out = q.new_empty((q.shape[0], layer.tp_q_head_num, layer.v_head_dim))
        for i, row in enumerate(self._forward.rows):
            own = slice(i * each, (i + 1) * each)
            out[own] = attend(
                q[own],
                CachedKeys.of(self._runner, layer, row),
                self._ranges[i],
                k[own],
                v[own],
                layer.scaling,
                layer.logit_cap,
            )
        return out.view(q.shape[0], -1)


def run_again(
    original: Callable[..., Any],
    runner: Any,
    forward_batch: Any,
    forward: DraftForward,
    window: Window | None,
) -> Any:
    """Logits of a draft forward with restricted reads, [tokens, vocabulary], before or after the real one.

    Input tokens, positions and hidden state are the real forward's, as copies; slots to write to are the
    pool's dummy slot, for models that write keys ahead of their attention.

    Args:
        original: `ModelRunner.forward`.
    """
    spec_info = copy.copy(forward_batch.spec_info)
    spec_info.hidden_states = spec_info.hidden_states.clone()
    again = replace(
        forward_batch,
        input_ids=forward_batch.input_ids.clone(),
        positions=forward_batch.positions.clone(),
        out_cache_loc=torch.zeros_like(forward_batch.out_cache_loc),
        spec_info=spec_info,
        residual_stream=None,
    )
    again.forward_metadata_ready = True
    reads = RestrictedReads(runner, forward, window)
    with forward_context(ForwardContext(attn_backend=reads), forward_batch=again):
        return original(runner, again).logits_output.next_token_logits
