"""Windowed draft reads on the CPU backend.

It hands `req_to_token` straight to its kernels, so the compact table takes its place in their arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention import intel_amx_backend as upstream

from harness.engine.backends import DraftBackends
from harness.engine.state import DraftState


class WindowedMultiStep(upstream.IntelAMXMultiStepDraftBackend):
    """The draft's decode steps: sink, window, and the step's own branch."""

    reads_windowed = True

    def __init__(self, model_runner: Any, topk: int, speculative_num_steps: int) -> None:
        super().__init__(model_runner, topk, speculative_num_steps)
        self.state: DraftState = model_runner.windowed_mtp

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Plan all steps of one draft phase; a branch of a tree is a lane of its own."""
        topk, steps = self.topk, self.speculative_num_steps
        committed = forward_batch.seq_lens.to(torch.int64).repeat_interleave(topk)
        rows = forward_batch.req_pool_indices.repeat_interleave(topk)
        branch = torch.arange(topk).repeat(forward_batch.batch_size)
        own = (committed + branch * steps)[:, None] + torch.arange(steps)
        recent_from = committed - self.state.geometry.window_tokens
        table, kept = self.state.read_table(rows, committed, recent_from, own)
        lanes = torch.arange(table.shape[0], dtype=torch.int64)
        for step, backend in enumerate(self.attn_backends):
            scratch = (lanes.shape[0], backend.num_head, backend.num_kv_splits, backend.v_head_dim + 1)
            backend.forward_metadata = (torch.empty(scratch, dtype=torch.float32), None)
            backend.draft_decode_metadata = (table, kept + step + 1, lanes)


class WindowedExtend(upstream.IntelAMXAttnBackend):
    """Draft extend and draft prefill: a forward's own tokens, and of its prefix the sink and the window."""

    reads_windowed = True
    extend_attention_fwd: Any

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        self.state: DraftState = model_runner.windowed_mtp
        self._attend = self.extend_attention_fwd
        self.extend_attention_fwd = self._attend_windowed
        self._view: tuple[Any, ...] | None = None
        self._last: tuple[Any, ...] | None = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Plan one forward; `extend_prefix_lens` and `seq_lens` are those of the whole, unpruned chunk."""
        super().init_forward_metadata(forward_batch)
        self._view = self._last = None
        mode = forward_batch.forward_mode
        if mode.is_decode_or_idle() or mode.is_target_verify():
            return
        window = self.state.geometry.window_tokens
        rows = forward_batch.req_pool_indices
        prefix = forward_batch.extend_prefix_lens.to(torch.int64)
        counts = forward_batch.extend_seq_lens.to(torch.int64)
        ends = forward_batch.seq_lens.to(torch.int64)
        is_prefill = not mode.is_draft_extend_v2()
        recent_from = (ends if is_prefill else prefix) - window
        table, kept = self.state.read_table(rows, prefix, recent_from)
        # The kernel takes the forward's own keys from its arguments: their columns are named, never read.
        table = torch.nn.functional.pad(table, (0, int(counts.max())))
        lanes = torch.arange(rows.shape[0], dtype=torch.int64)
        self._view = (table, lanes, kept + counts)
        chunks = zip(prefix.tolist(), counts.tolist(), strict=True)
        if is_prefill and any(self.state.geometry.overfills(*chunk) for chunk in chunks):
            self._last = self._plan_last(rows, ends, counts, lanes)

    def _plan_last(self, rows: Any, ends: Any, counts: Any, lanes: Any) -> tuple[Any, ...]:
        """Read table of each chunk's last token alone.

        Within a chunk longer than the window, causal attention shows the last token more keys than W. Its
        output starts the first draft, which must not depend on how the prompt was cut: it is computed again
        over the sink and the window. The other tokens' outputs are never used.
        """
        table, kept = self.state.read_table(rows, ends, ends - self.state.geometry.window_tokens)
        return table, lanes, kept, counts.cumsum(0) - 1

    def _attend_windowed(self, *arguments: Any) -> None:
        # q, k, v, o, k_buffer, v_buffer, k_scale, v_scale, req_to_token, req_pool_indices, seq_lens, ...
        if self._view is None:
            self._attend(*arguments)
            return
        self._attend(*arguments[:8], *self._view, *arguments[11:])
        if self._last is not None:
            self._attend_last(arguments)

    def _attend_last(self, arguments: tuple[Any, ...]) -> None:
        table, lanes, kept, last = self._last or ()
        query, output = arguments[0], arguments[3]
        k_buffer, v_buffer, k_scale, v_scale = arguments[4:8]
        scaling, logit_cap, is_cross, sliding_window, encoder_lens, sinks = arguments[14:20]
        out = torch.empty_like(output[last])
        scratch = (lanes.shape[0], query.shape[1], self.num_kv_splits, v_buffer.shape[-1] + 1)
        self.decode_attention_fwd(
            query[last].contiguous(), k_buffer, v_buffer, k_scale, v_scale, out, None, None, lanes,
            torch.empty(scratch, dtype=torch.float32), table, lanes, kept, scaling, logit_cap, is_cross,
            sliding_window, encoder_lens, sinks,
        )  # fmt: skip
        output[last] = out


def build() -> DraftBackends:
    """The CPU draft classes."""
    return DraftBackends(decode=WindowedMultiStep, extend=WindowedExtend)
