"""The attention-mass probe: where a native draft's attention lies, and what a window would cost its read-out.

Each draft forward runs as it is. What its attention layers were asked and what they answered is kept (query,
residual stream, output projection); the softmax is then done anew from the cached keys and values, for the
token that the proposal follows from (arXiv:2607.21535, appendix C and table 12).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.engine import compat
from harness.engine.probes.cached import CachedKeys
from harness.engine.probes.forwards import DraftForward
from harness.engine.probes.mass import measure
from harness.engine.probes.native import NativeProbe, forward_of
from harness.engine.probes.settings import ProbeSettings

_ATTENTION = "sglang.srt.layers.radix_attention.RadixAttention.forward"
_SIGNATURE = "self q k v forward_batch save_kv_cache= key_value_num_tokens= **kwargs"


@dataclass
class Asked:
    """One attention layer in one forward, for the tokens that proposals follow from.

    Attributes:
        layer: SGLang's `RadixAttention`.
        query: [requests, heads, head_dim].
        output: [requests, heads, value_dim] the attention kernel's answer.
        residual: [requests, hidden] stream that the layer's output is added to; None where it is not known.
        projected: [requests, hidden] what the layer adds, W_o o; None where the rank holds a part of it.
    """

    layer: Any
    query: Tensor
    output: Tensor
    residual: Tensor | None
    projected: Tensor | None = None


class AttentionMassProbe(NativeProbe):
    """The probe in one process."""

    def __init__(self, settings: ProbeSettings) -> None:
        super().__init__(settings)
        self.asked: list[Asked] = []
        self.tokens: Tensor | None = None
        self.whole_rank = True

    def hooks(self, hook_type: Any) -> dict[str, tuple[Callable[..., Any], Any]]:
        """Those of all native probes, and one on the attention layers."""
        compat.require_signatures({_ATTENTION: _SIGNATURE})
        return {**super().hooks(hook_type), _ATTENTION: (self.attended, hook_type.AFTER)}

    def attach(self, result: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
        """Listen to the output projections beside the draft's attention layers."""
        from sglang.srt.layers.radix_attention import RadixAttention
        from sglang.srt.runtime_context import get_parallel

        super().attach(result, worker)
        # A rank of several holds a part of the sum W_o o: its norm alone would say nothing.
        self.whole_rank = get_parallel().attn_tp_size == 1
        for module in worker.draft_runner.model.modules():
            projection = getattr(module, "o_proj", None)
            if projection is not None and any(isinstance(m, RadixAttention) for m in module.children()):
                projection.register_forward_hook(self.projected)

    def look(
        self, run: Callable[[], Any], original: Callable[..., Any], runner: Any, forward_batch: Any
    ) -> Any:
        """Run the forward, then measure; by then its own keys are in the cache."""
        try:
            forward = forward_of(forward_batch)
            self.tokens = torch.tensor(forward.tokens, device=forward_batch.input_ids.device)
            self.asked = []
        except Exception as error:  # noqa: BLE001 - serving goes on
            self.fail(error)
            return run()
        try:
            result = run()
        finally:
            asked, self.asked, self.tokens = self.asked, [], None
        self.safely(lambda: self._measure(runner, forward, asked))
        return result

    # -- listeners, active during a forward that is looked at -----------------------------------------

    def attended(
        self,
        result: Any,
        layer: Any,
        q: Tensor,
        k: Any,
        v: Any,
        forward_batch: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """An attention layer has run."""
        if self.tokens is None:
            return
        stream = getattr(forward_batch, "residual_stream", None)
        residual = getattr(stream, "residual", None)
        query = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        output = result.view(-1, layer.tp_q_head_num, layer.v_head_dim)
        # Indexing copies: what is kept stays as it is when the model works in place.
        self.asked.append(
            Asked(
                layer,
                query[self.tokens],
                output[self.tokens],
                None if residual is None else residual[self.tokens],
            )
        )

    def projected(self, projection: Any, inputs: Any, output: Any) -> None:
        """An output projection has run, right after its attention layer."""
        if self.tokens is None or not self.asked or not self.whole_rank:
            return
        made = output[0] if isinstance(output, tuple) else output
        self.asked[-1].projected = made[self.tokens]

    # -- measuring ------------------------------------------------------------------------------------

    def _measure(self, runner: Any, forward: DraftForward, asked: list[Asked]) -> list[dict[str, Any]]:
        """One line a request and layer."""
        if not asked:
            raise RuntimeError("no attention layer of the draft was seen")
        lines = []
        for number, one in enumerate(asked):
            shares = _residual_shares(one)
            for i, row in enumerate(forward.rows):
                found = measure(
                    one.query[i],
                    CachedKeys.of(runner, one.layer, row),
                    forward.committed[i],
                    forward.positions[i],
                    self.settings.windows,
                    scale=one.layer.scaling,
                    logit_cap=one.layer.logit_cap,
                    output=one.output[i],
                )
                lines.append({**forward.facts(i), "layer": number, "residual_share": shares[i], **found})
        return lines


def _residual_shares(asked: Asked) -> list[float | None]:
    """|W_o o| / |h| of each request."""
    if asked.residual is None or asked.projected is None:
        return [None] * asked.query.shape[0]
    norms = asked.projected.float().norm(dim=-1) / asked.residual.float().norm(dim=-1)
    shares: list[float | None] = norms.tolist()
    return shares
