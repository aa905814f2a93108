"""A plugin of the tests: plans the draft's FlashInfer forwards as a CUDA graph's capture and replay would.

Loaded into the server's processes after ours and the stand-ins. Per batch size there is one capture, of an
empty batch; every forward is then replayed into its wrappers, with padded lanes first. The eager forward
reads the wrappers of the replay without them: it has no rows for padding.
"""

from __future__ import annotations

import copy
import types
from typing import Any

import torch
from flashinfer_standin import check_plan

MAX_BATCH = 4
PADDING = 2
FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory."
POISON = -(10**6)


def activate() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(FACTORY + "create_decode_backend", plan_decode, HookType.AFTER)
    HookRegistry.register(FACTORY + "create_draft_extend_backend", plan_extend, HookType.AFTER)


def _pad(values: torch.Tensor, lanes: int, fill: int) -> torch.Tensor:
    return torch.cat([values, values.new_full((lanes - values.shape[0],), fill)])


def padded(batch: Any, lanes: int, tokens: int, empty: bool) -> Any:
    """The batch with `lanes` lanes of `tokens` tokens, as a graph runner pads it; `empty` pads all."""
    real = 0 if empty else batch.batch_size
    view = types.SimpleNamespace(**vars(batch))
    view.batch_size = lanes
    view.req_pool_indices = _pad(batch.req_pool_indices[:real], lanes, 0)
    view.seq_lens = _pad(batch.seq_lens[:real], lanes, 1)
    view.seq_lens_cpu = view.seq_lens.clone()
    view.seq_lens_sum = int(view.seq_lens.sum())
    view.positions = _pad(batch.positions[: real * tokens], lanes * tokens, 0)
    view.out_cache_loc = None
    return view


def plan_decode(backend: Any, factory: Any) -> Any:
    from sglang.srt.layers.attention.flashinfer_backend import DecodeMetadata

    backend.init_cuda_graph_state(MAX_BATCH, MAX_BATCH * backend.topk)
    captured: set[int] = set()

    def plan(batch: Any) -> None:
        for lanes in (batch.batch_size + PADDING, batch.batch_size):
            if lanes not in captured:
                empty = padded(batch, lanes, backend.topk, empty=True)
                backend.init_forward_metadata_out_graph(empty, in_capture=True)
                captured.add(lanes)
            for buffer in (backend.kv_indptr, backend.cuda_graph_kv_indices, backend.views.table):
                buffer.fill_(POISON)
            backend.kv_indptr[:, 0] = 0
            backend.init_forward_metadata_out_graph(padded(batch, lanes, backend.topk, empty=False))
            for child in backend.attn_backends:
                wrappers = child.decode_cuda_graph_metadata[lanes]
                check_plan(wrappers[0]._plan_info, wrappers[0]._paged_kv_indptr_buf)
                child.forward_metadata = DecodeMetadata(wrappers)
        print("flashinfer-graph-probe: decode planned with padded lanes", flush=True)

    backend.init_forward_metadata = plan
    return backend


def plan_extend(backend: Any, factory: Any) -> Any:
    from sglang.srt.layers.attention.flashinfer_backend import PrefillMetadata

    depth = backend.own_tokens
    backend.init_cuda_graph_state(MAX_BATCH, MAX_BATCH * depth)
    eager = backend.init_forward_metadata
    captured: set[int] = set()

    def view_of(batch: Any, lanes: int, empty: bool) -> Any:
        view = padded(batch, lanes, depth, empty)
        view.spec_info = copy.copy(batch.spec_info)
        view.spec_info.num_correct_drafts = torch.zeros(lanes, dtype=torch.int32)
        return view

    def plan(batch: Any) -> None:
        if not batch.forward_mode.is_draft_extend_v2():
            eager(batch)
            return
        for lanes in (batch.batch_size + PADDING, batch.batch_size):
            if lanes not in captured:
                backend.init_forward_metadata_out_graph(view_of(batch, lanes, True), in_capture=True)
                captured.add(lanes)
            backend.cuda_graph_kv_indices[0].fill_(POISON)
            backend.views.table.fill_(POISON)
            backend.init_forward_metadata_out_graph(view_of(batch, lanes, False))
            wrappers = backend.draft_extend_cuda_graph_metadata[lanes]
            check_plan(wrappers[0]._plan_info.kv, wrappers[0]._paged_kv_indptr_buf)
            backend.forward_metadata = PrefillMetadata(wrappers, False, False)
        print("flashinfer-graph-probe: draft extend planned with padded lanes", flush=True)

    backend.init_forward_metadata = plan
    return backend
