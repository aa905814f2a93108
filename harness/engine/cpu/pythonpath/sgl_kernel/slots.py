"""Bookkeeping of KV slots and token ids, by request.

`req_to_token` [rows, max_context] int32 names the KV slot of each position of each request. All functions
write their results into a tensor given by the caller, as SGLang's kernels do. A batch has few requests, so
each is handled as a slice: that is faster here than building index tensors.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """req_to_token[row_i, start_i:end_i] = the next end_i - start_i entries of `out_cache_loc`."""
    taken = 0
    for row, start, end in zip(
        req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True
    ):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start]
        taken += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """The reverse: `out_cache_loc` is filled with req_to_token[row_i, start_i:end_i], request by request."""
    taken = 0
    for row, start, end in zip(
        req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True
    ):
        out_cache_loc[taken : taken + end - start] = req_to_token[row, start:end]
        taken += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Slots a draft writes: the topk * num_steps positions after each request's committed tokens.

    Branch t of request i owns entries [(i * topk + t) * num_steps, ... + num_steps).
    """
    width = topk * num_steps
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        out_cache_loc[i * width : (i + 1) * width] = req_to_token[row, length : length + width]


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Slots of accepted tokens, packed: accept_out_cache_loc[j] = out_cache_loc[j-th entry that isn't -1]."""
    accepted = accept_index[accept_index > -1]
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted]


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """The last token each request emitted.

    Args:
        accept_tokens: [requests * accept_stride] emitted tokens, each request's row padded at its end.
        accept_lens: [requests] emitted tokens, bonus token included, at least one.
        bonus_tokens: [>= requests], written.
    """
    requests = accept_lens.shape[0]
    last = torch.arange(requests) * accept_stride + accept_lens.long() - 1
    bonus_tokens[:requests] = accept_tokens.reshape(-1)[last]


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """In place: each request's ids move one to the left and `topk_index` takes the freed place.

    The place is the request's last one, or `select_index` (an index into `input_ids`) where given.
    """
    spots = [None] * extend_seq_lens.shape[0] if select_index is None else select_index.tolist()
    for start, length, token, spot in zip(
        extend_start_loc.tolist(),
        extend_seq_lens.tolist(),
        topk_index.reshape(-1).tolist(),
        spots,
        strict=True,
    ):
        if length == 0:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        input_ids[start + length - 1 if spot is None else spot] = token


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy slots within each layer's K and V buffer: buffer[tgt_j] = the old buffer[src_j].

    Args:
        data_ptrs: [buffers] uint64 addresses.
        strides: [buffers] bytes from one slot to the next, which is also the size of a slot.
        tgt_loc, src_loc: [slots]; they may overlap, hence the copy of all sources first.
    """
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(address + source * stride, stride) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(address + target * stride, row, stride)
