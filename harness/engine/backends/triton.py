"""Windowed draft reads on SGLang's Triton backend, eager and under CUDA graphs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from sglang.srt.layers.attention import triton_backend as upstream

from harness.engine.backends import DraftBackends
from harness.engine.backends.steps import WindowedSteps
from harness.engine.backends.views import CompactViews
from harness.engine.state import DraftState


class WindowedMultiStep(WindowedSteps, upstream.TritonMultiStepDraftBackend):
    """The draft's decode steps."""


class WindowedExtend(upstream.TritonAttnBackend):
    """Draft extend and draft prefill. The kernel takes a forward's own keys from its arguments."""

    reads_windowed = True
    kv_index_translator: Any
    forward_metadata: Any

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner, skip_prefill=False)
        self.state: DraftState = model_runner.windowed_mtp
        self.views = CompactViews(self.state, self.kv_index_translator, self.state.rows + 1, 0)
        self.last_views = CompactViews(self.state, self.kv_index_translator, self.state.rows + 1, 0)
        self.kv_index_translator = self.views.translator
        self.max_context_len = self.views.columns
        self._last: tuple[Any, Any, Any] | None = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Plan an eager forward; `extend_prefix_lens` and `seq_lens` are those of the unpruned chunk."""
        self._last = None
        mode = forward_batch.forward_mode
        if mode.is_decode_or_idle() or mode.is_target_verify():
            super().init_forward_metadata(forward_batch)
            return
        geometry = self.state.geometry
        prefix = forward_batch.extend_prefix_lens.to(torch.int64)
        ends = forward_batch.seq_lens.to(torch.int64)
        is_prefill = not mode.is_draft_extend_v2()
        recent_from = (ends if is_prefill else prefix) - geometry.window_tokens
        counts = forward_batch.extend_seq_lens
        # Only a prefill's prefix is always known on the host.
        if is_prefill and any(
            geometry.overfills(*chunk)
            for chunk in zip(
                forward_batch.extend_prefix_lens_cpu, forward_batch.extend_seq_lens_cpu, strict=True
            )
        ):
            self._last = self._plan_last(forward_batch, ends, counts)
        super().init_forward_metadata(self.views.extend(forward_batch, counts, prefix, recent_from))

    def _plan_last(self, forward_batch: Any, ends: Any, counts: Any) -> tuple[Any, Any, Any]:
        """Plan each chunk's last token alone (`CompactViews.last_tokens`)."""
        single, view = self.last_views.last_tokens(forward_batch, ends)
        translator, self.kv_index_translator = self.kv_index_translator, self.last_views.translator
        # `kv_indptr` and `qo_indptr` are buffers of the backend: the next plan overwrites them.
        super().init_forward_metadata(view)
        self.kv_index_translator = translator
        metadata = copy.copy(self.forward_metadata)
        metadata.kv_indptr = metadata.kv_indptr.clone()
        metadata.qo_indptr = metadata.qo_indptr.clone()
        return metadata, single, (counts.cumsum(0) - 1).to(torch.int64)

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **extra: Any
    ) -> Any:
        """Attend, then let each long chunk's last token attend again within the window."""
        output = super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **extra)
        if self._last is None:
            return output
        metadata, single, last = self._last
        whole, self.forward_metadata = self.forward_metadata, metadata
        output[last] = super().forward_extend(q[last], k[last], v[last], layer, single, False, **extra)
        self.forward_metadata = whole
        return output

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Plan a captured draft extend, into the buffers its graph reads."""
        self._last = None
        if forward_batch.forward_mode.is_draft_extend_v2():
            forward_batch = self._extend_view(forward_batch)
        super().init_forward_metadata_out_graph(forward_batch, in_capture)

    def _extend_view(self, forward_batch: Any) -> Any:
        lanes = forward_batch.batch_size
        ends = forward_batch.seq_lens[:lanes].to(torch.int64)
        counts = getattr(forward_batch.spec_info, "extend_seq_lens_tensor", None)
        # Absent when a graph is captured: nothing is committed yet.
        counts = torch.zeros_like(ends) if counts is None else counts[:lanes]
        prefix = (ends - counts).clamp(min=0)
        return self.views.extend(forward_batch, counts, prefix, prefix - self.state.geometry.window_tokens)


def build() -> DraftBackends:
    """The Triton draft classes."""
    return DraftBackends(decode=WindowedMultiStep, extend=WindowedExtend)
