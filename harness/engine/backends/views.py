"""Views of a batch in which every request looks as short as what its draft may read.

For the backends that read through the runner's `KVIndexTranslator` (Triton, FlashInfer): they get a shallow
copy of the batch whose rows are 0, 1, ..., whose lengths are the kept ones, and a translator whose
`req_to_token` is the compact table. The buffers are fixed, as a CUDA graph's replay needs.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from harness.engine.kernels import fill_compact_table
from harness.engine.state import DraftState


class CompactViews:
    """One backend's compact table and the views that go with it.

    Args:
        state: the draft runner's state.
        translator: the runner's `KVIndexTranslator`; a copy of it reads the table.
        max_lanes: most requests in a batch, padding included.
        tail_columns: columns past the kept positions.
    """

    def __init__(self, state: DraftState, translator: Any, max_lanes: int, tail_columns: int) -> None:
        self.state = state
        geometry = state.geometry
        self.columns = geometry.sink_tokens + geometry.window_tokens + tail_columns
        self.table = torch.zeros((max_lanes, self.columns), dtype=torch.int32, device=state.device)
        self.lengths = torch.zeros(max_lanes, dtype=torch.int64, device=state.device)
        self.lanes = torch.arange(max_lanes, dtype=torch.int64, device=state.device)
        self.translator = copy.copy(translator)
        self.translator.req_to_token = self.table

    def decode(self, forward_batch: Any, tail_tokens: int) -> Any:
        """View of a draft decode batch; each lane ends with the `tail_tokens` slots its steps write."""
        window = self.state.geometry.window_tokens
        lanes = forward_batch.batch_size
        committed = forward_batch.seq_lens[:lanes]
        kept = self._fill(forward_batch.req_pool_indices[:lanes], committed, committed - window, tail_tokens)
        view = copy.copy(forward_batch)
        view.req_pool_indices = self.lanes[:lanes]
        view.seq_lens = kept
        # The index builders read committed lengths from here; the model has the real positions.
        view.positions = kept.repeat_interleave(self.state.settings.topk)
        on_host = forward_batch.seq_lens_cpu
        if on_host is None:
            view.seq_lens_cpu = view.seq_lens_sum = None
        else:
            view.seq_lens_cpu = on_host[:lanes].clamp(max=self.state.geometry.sink_tokens + window)
            view.seq_lens_sum = int(view.seq_lens_cpu.sum())
        return view

    def extend(
        self, forward_batch: Any, counts: Tensor, prefix: Tensor, recent_from: Tensor, tail_tokens: int = 0
    ) -> Any:
        """View of a draft extend or prefill batch; it carries no host lengths.

        Args:
            counts: [requests] tokens that the forward runs (a pruned chunk's: fewer than it covers).
            prefix, recent_from: [requests] int64; see `RingGeometry.kept`.
            tail_tokens: slots from the prefix on that each lane ends with, for a kernel that reads a
                forward's own keys from the pool; 0 where it takes them from the forward's arguments.
        """
        lanes = forward_batch.batch_size
        kept = self._fill(forward_batch.req_pool_indices[:lanes], prefix, recent_from, tail_tokens)
        view = copy.copy(forward_batch)
        view.req_pool_indices = self.lanes[:lanes]
        view.seq_lens = kept + counts
        view.extend_prefix_lens = kept.to(torch.int32)
        view.extend_prefix_lens_cpu = None
        view.seq_lens_cpu = view.seq_lens_sum = None
        return view

    def last_tokens(self, forward_batch: Any, ends: Tensor) -> tuple[Any, Any]:
        """The batch of each chunk's last token alone, and its view over the sink and the window.

        Causal attention within a chunk longer than the window shows its last token more keys than W. That
        token's output starts the first draft, which must not depend on how the prompt was cut. The other
        tokens' outputs are never used.

        Args:
            ends: [requests] int64, tokens committed once the chunk has run.
        """
        single = copy.copy(forward_batch)
        single.extend_seq_lens = torch.ones_like(forward_batch.extend_seq_lens)
        single.extend_seq_lens_cpu = [1] * forward_batch.batch_size
        recent_from = ends - self.state.geometry.window_tokens
        return single, self.extend(single, single.extend_seq_lens, ends - 1, recent_from)

    def _fill(self, rows: Tensor, committed: Tensor, recent_from: Tensor, tail_tokens: int) -> Tensor:
        lanes = committed.shape[0]
        fill_compact_table(
            self.state.geometry,
            rows,
            committed,
            recent_from,
            self.state.req_to_token,
            self.table,
            self.lengths,
            tail_tokens,
            self.state.is_ring,
        )
        return self.lengths[:lanes]
