"""A plugin of the tests: plans the draft's forwards as a CUDA graph's capture and replay would.

Loaded into the server's processes beside ours. Draft decode is planned with padded lanes, into the persistent
buffers, once as capture and once as replay; the eager forward then reads those buffers. Draft extend is
planned with padded lanes first and without them second: an eager forward has no rows for padding.
"""

from __future__ import annotations

import types
from typing import Any

import torch

MAX_BATCH = 8
FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory."


def activate() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(FACTORY + "create_decode_backend", plan_decode, HookType.AFTER)
    HookRegistry.register(FACTORY + "create_draft_extend_backend", plan_extend, HookType.AFTER)


def _pad(values: torch.Tensor, lanes: int, fill: int) -> torch.Tensor:
    return torch.cat([values, values.new_full((lanes - values.shape[0],), fill)])


def plan_decode(backend: Any, factory: Any) -> Any:
    backend.init_cuda_graph_state(MAX_BATCH, MAX_BATCH)

    def plan(batch: Any) -> None:
        lanes = batch.batch_size + 2
        padded = types.SimpleNamespace(**vars(batch), num_padding=2)
        padded.batch_size = lanes
        padded.req_pool_indices = _pad(batch.req_pool_indices, lanes, 0)
        padded.seq_lens = _pad(batch.seq_lens, lanes, 1)
        padded.positions = _pad(batch.positions, lanes, 0)
        padded.out_cache_loc = None
        padded.seq_lens_cpu = padded.seq_lens_sum = None
        backend.init_forward_metadata_out_graph(padded, in_capture=True)
        for buffer in (backend.kv_indptr, backend.cuda_graph_kv_indices, backend.views.table):
            buffer.fill_(-7)
        backend.kv_indptr[:, 0] = 0
        backend.init_forward_metadata_out_graph(padded)
        assert backend.views.lengths[lanes - 2 : lanes].tolist() == [1, 1]
        assert backend.views.table[lanes - 2 : lanes, 0].tolist() == [0, 0]
        print("graph-probe: decode planned with padded lanes", flush=True)

    backend.init_forward_metadata = plan
    return backend


def plan_extend(backend: Any, factory: Any) -> Any:
    depth = backend.num_draft_tokens
    backend.init_cuda_graph_state(MAX_BATCH, MAX_BATCH * depth)
    eager = backend.init_forward_metadata

    def plan(batch: Any) -> None:
        if not batch.forward_mode.is_draft_extend_v2():
            eager(batch)
            return
        for lanes in (batch.batch_size + 2, batch.batch_size):
            counts = _pad(batch.extend_seq_lens, lanes, depth)
            batch.spec_info.extend_seq_lens_tensor = counts
            view = types.SimpleNamespace(
                batch_size=lanes,
                forward_mode=batch.forward_mode,
                spec_info=batch.spec_info,
                req_pool_indices=_pad(batch.req_pool_indices, lanes, 0),
                seq_lens=_pad(batch.seq_lens, lanes, 1),
                seq_lens_sum=None,
                seq_lens_cpu=None,
                encoder_lens=None,
                out_cache_loc=batch.out_cache_loc,
                kv_loc_plan=batch.kv_loc_plan,
                kv_loc_cols=batch.kv_loc_cols,
            )
            backend.init_forward_metadata_out_graph(view, in_capture=True)
            backend.init_forward_metadata_out_graph(view)
            if lanes > batch.batch_size:
                assert backend.views.lengths[batch.batch_size : lanes].tolist() == [0, 0]
        print("graph-probe: draft extend planned with padded lanes", flush=True)

    backend.init_forward_metadata = plan
    return backend
