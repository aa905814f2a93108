"""The draft's decode steps over compact views, for backends that plan all steps from one batch."""

from __future__ import annotations

from typing import Any

from harness.engine.backends.views import CompactViews
from harness.engine.state import DraftState


class WindowedSteps:
    """Put before an SGLang multi-step draft backend among a class's bases: it then plans windowed views.

    Each step reads its own keys from the pool, where it has just written them.
    """

    reads_windowed = True
    kv_index_translator: Any
    kv_indptr: Any
    attn_backends: list[Any]

    def __init__(self, model_runner: Any, topk: int, speculative_num_steps: int) -> None:
        planner: Any = super()
        planner.__init__(model_runner, topk, speculative_num_steps)
        state: DraftState = model_runner.windowed_mtp
        self.tail_tokens = topk * speculative_num_steps
        self.views = CompactViews(
            state, self.kv_index_translator, self.kv_indptr.shape[1] - 1, self.tail_tokens
        )
        self.kv_index_translator = self.views.translator
        # The table is windowed already; upstream's own window must not cut it again.
        self.draft_window_size = self.draft_sink_size = 0
        # Index buffers are sized by this: the window, not the model's context.
        self.max_context_len = self.views.columns
        for backend in self.attn_backends:
            backend.max_context_len = self.views.columns

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Plan an eager draft phase."""
        planner: Any = super()
        planner.init_forward_metadata(self._view(forward_batch))

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Plan a captured draft phase, into the buffers its graph reads."""
        planner: Any = super()
        planner.init_forward_metadata_out_graph(self._view(forward_batch), in_capture)

    def _view(self, forward_batch: Any) -> Any:
        if forward_batch.forward_mode.is_idle():
            return forward_batch
        return self.views.decode(forward_batch, self.tail_tokens)
