"""Windowed draft reads on SGLang's FlashInfer backend, eager and under CUDA graphs.

FlashInfer is planned ahead, from lengths on the host and on the device: every view here carries both, equal
in each lane, padded ones included.

A forward's own keys: eager draft prefill and extend take them from the forward's arguments (the ragged
wrapper) and only the prefix from the pool. A captured draft extend reads them from the pool, where the ring
holds a step's own tokens beside the window, so its lanes end with their slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from sglang.srt.layers.attention import flashinfer_backend as upstream

from harness.engine.backends import DraftBackends
from harness.engine.backends.steps import WindowedSteps
from harness.engine.backends.views import CompactViews
from harness.engine.state import DraftState
from harness.errors import ConfigError


class WindowedMultiStep(WindowedSteps, upstream.FlashInferMultiStepDraftBackend):
    """The draft's decode steps."""

    def __init__(self, model_runner: Any, topk: int, speculative_num_steps: int) -> None:
        super().__init__(model_runner, topk, speculative_num_steps)
        refuse_copied_keys(self.attn_backends)


class WindowedExtend(upstream.FlashInferAttnBackend):
    """Draft extend and draft prefill."""

    reads_windowed = True
    kv_index_translator: Any
    forward_metadata: Any

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner, skip_prefill=False)
        refuse_copied_keys([self])
        refuse_pool_reads(self)
        self.state: DraftState = model_runner.windowed_mtp
        self.own_tokens = self.state.settings.draft_tokens
        self.views = CompactViews(self.state, self.kv_index_translator, self.state.rows + 1, self.own_tokens)
        last_views = CompactViews(self.state, self.kv_index_translator, self.state.rows + 1, 0)
        self.kv_index_translator = self.views.translator
        self.max_context_len = self.views.columns
        # A wrapper holds one plan, and planning fills buffers of its backend: the second plan of a long chunk
        # needs a backend of its own.
        self.last = upstream.FlashInferAttnBackend(model_runner, skip_prefill=False)
        self.last_views, self.last.kv_index_translator = last_views, last_views.translator
        # Upstream reads a multimodal model's own keys back from the pool; a ring need not hold a chunk's.
        self.is_multimodal = self.last.is_multimodal = False
        self._last: tuple[Any, Any] | None = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Plan an eager forward; `extend_prefix_lens` and `seq_lens` are those of the unpruned chunk.

        Raises:
            ConfigError: this forward would read its own keys back from the pool.
        """
        self._last = None
        mode = forward_batch.forward_mode
        if mode.is_decode_or_idle() or mode.is_target_verify():
            super().init_forward_metadata(forward_batch)
            return
        window = self.state.geometry.window_tokens
        prefix = forward_batch.extend_prefix_lens.to(torch.int64)
        ends = forward_batch.seq_lens.to(torch.int64)
        counts, counts_cpu = forward_batch.extend_seq_lens, forward_batch.extend_seq_lens_cpu
        prefix_cpu = [int(length) for length in forward_batch.extend_prefix_lens_cpu]
        if mode.is_draft_extend_v2():
            view = self.views.extend(forward_batch, counts, prefix, prefix - window)
            recent_cpu = [length - window for length in prefix_cpu]
        else:
            view = self.views.extend(forward_batch, counts, prefix, ends - window)
            ends_cpu = [int(length) for length in forward_batch.seq_lens_cpu]
            recent_cpu = [end - window for end in ends_cpu]
            chunks = zip(prefix_cpu, counts_cpu, strict=True)
            if any(self.state.geometry.overfills(*chunk) for chunk in chunks):
                self._last = self._plan_last(forward_batch, ends, ends_cpu)
        self._set_host_lengths(view, prefix_cpu, recent_cpu, counts_cpu)
        super().init_forward_metadata(view)
        if not self.forward_metadata.use_ragged:
            raise ConfigError(
                "windowed-mtp cannot window FlashInfer's draft prefill in a piecewise CUDA graph: there it "
                "reads the chunk's own keys from the pool. Use --cuda-graph-backend-prefill disabled."
            )

    def _plan_last(self, forward_batch: Any, ends: Any, ends_cpu: list[int]) -> tuple[Any, Any]:
        """Plan each chunk's last token alone (`CompactViews.last_tokens`)."""
        window = self.state.geometry.window_tokens
        single, view = self.last_views.last_tokens(forward_batch, ends)
        before_cpu, recent_cpu = [end - 1 for end in ends_cpu], [end - window for end in ends_cpu]
        self._set_host_lengths(view, before_cpu, recent_cpu, single.extend_seq_lens_cpu)
        self.last.init_forward_metadata(view)
        return single, (forward_batch.extend_seq_lens.cumsum(0) - 1).to(torch.int64)

    def _set_host_lengths(
        self, view: Any, prefix: Sequence[int], recent_from: Sequence[int], counts: Sequence[int]
    ) -> None:
        """Give a view the host's copy of its lengths; they are computed as the device's are."""
        spans = [self.state.geometry.kept(*lane) for lane in zip(prefix, recent_from, strict=True)]
        kept = [len(sink) + len(recent) for sink, recent in spans]
        view.extend_prefix_lens_cpu = kept
        view.seq_lens_cpu = torch.tensor([sum(pair) for pair in zip(kept, counts, strict=True)])
        view.seq_lens_sum = int(view.seq_lens_cpu.sum())

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **extra: Any
    ) -> Any:
        """Attend, then let each long chunk's last token attend again within the window."""
        output = super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **extra)
        if self._last is not None:
            single, last = self._last
            output[last] = self.last.forward_extend(q[last], k[last], v[last], layer, single, False, **extra)
        return output

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Plan a captured draft extend, into the buffers its graph reads.

        Raises:
            ConfigError: another forward than a draft extend is to be captured.
        """
        self._last = None
        if not forward_batch.forward_mode.is_draft_extend_v2():
            raise ConfigError(
                "windowed-mtp: on FlashInfer no other draft forward than decode and extend can be captured: "
                "--cuda-graph-backend-prefill must be breakable or disabled."
            )
        super().init_forward_metadata_out_graph(self._captured_view(forward_batch), in_capture)

    def _captured_view(self, forward_batch: Any) -> Any:
        """View whose lanes end with the slots of the forward's own tokens, d in every lane.

        A padded lane is shorter than d: it has no prefix, and reads d times the dummy slot.
        """
        own, geometry = self.own_tokens, self.state.geometry
        lanes = forward_batch.batch_size
        prefix = (forward_batch.seq_lens[:lanes].to(torch.int64) - own).clamp(min=0)
        counts = torch.full_like(prefix, own)
        view = self.views.extend(forward_batch, counts, prefix, prefix - geometry.window_tokens, own)
        if forward_batch.seq_lens_cpu is not None:
            prefix_cpu = [max(int(end) - own, 0) for end in forward_batch.seq_lens_cpu[:lanes]]
            recent_cpu = [length - geometry.window_tokens for length in prefix_cpu]
            self._set_host_lengths(view, prefix_cpu, recent_cpu, [own] * lanes)
        return view


def refuse_copied_keys(backends: Iterable[Any]) -> None:
    """Stop where FlashInfer reads a dequantised copy of the draft's keys, laid out by full lengths.

    Args:
        backends: SGLang's FlashInfer backends, constructed.

    Raises:
        ConfigError: naming the reason.
    """
    if any(b.prefill_uses_dequant_workspace or b.decode_uses_dequant_workspace for b in backends):
        raise ConfigError(
            "windowed-mtp cannot window FlashInfer's reads of a 4-bit KV cache: they go through a copy that "
            "is laid out by full lengths. Use another --kv-cache-dtype, or "
            "--speculative-draft-attention-backend triton."
        )


def refuse_pool_reads(backend: Any) -> None:
    """Stop where FlashInfer's prefill would read a forward's own keys back from the pool.

    Args:
        backend: SGLang's FlashInfer backend, constructed.

    Raises:
        ConfigError: naming what asks for it.
    """
    asked = {
        "SGLANG_FLASHINFER_USE_PAGED": backend.use_paged,
        "multi-item scoring": backend.enable_mis,
        "deterministic inference": backend.enable_deterministic,
    }
    found = [name for name, asks in asked.items() if asks]
    if found:
        raise ConfigError(
            f"windowed-mtp cannot window FlashInfer's prefill with {' and '.join(found)}: it then reads a "
            "chunk's own keys back from the pool. Turn that off, or use "
            "--speculative-draft-attention-backend triton."
        )


def build() -> DraftBackends:
    """The FlashInfer draft classes."""
    return DraftBackends(decode=WindowedMultiStep, extend=WindowedExtend)
