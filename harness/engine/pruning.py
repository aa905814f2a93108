"""Draft prefill on just the prompt tokens whose keys and values a later step can read.

The draft has one layer, so what it stores for a prompt token depends on that token's embedding and the
target's hidden state alone, not on what its attention reads. With a window, only the sink and the last W
prompt positions are ever read. The rest of the prompt need not pass through the draft (Windowed-MTP,
arXiv:2607.21535, section 7, names this as future work).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harness.engine.geometry import RingGeometry


def needed_spans(geometry: RingGeometry, first: int, tokens: int, prompt_tokens: int) -> tuple[range, range]:
    """Offsets within a chunk whose positions must pass through the draft, as two disjoint spans.

    Args:
        first: the chunk's first position.
        tokens: its length.
        prompt_tokens: the whole prompt's length, generated tokens included after a retraction.
    """
    sink_end = min(max(geometry.sink_tokens - first, 0), tokens)
    recent = min(max(prompt_tokens - geometry.window_tokens - first, sink_end), tokens)
    return range(sink_end), range(recent, tokens)


def chunks_of(batch: Any) -> list[tuple[int, int, int]]:
    """(first position, tokens, prompt tokens) of each request of a prefill batch."""
    prompts = [len(request.full_untruncated_fill_ids) for request in batch.reqs]
    return list(zip(batch.prefix_lens, batch.extend_lens, prompts, strict=True))


def prune(geometry: RingGeometry, chunks: Sequence[tuple[int, int, int]], forward_batch: Any) -> None:
    """Drop the tokens that no later step reads from a draft prefill's batch.

    Each request keeps at least its chunk's last token, whose output the worker takes. `seq_lens` and
    `extend_prefix_lens` stay those of the whole chunk: they place what is read and written.
    """
    kept: list[Tensor] = []
    counts: list[int] = []
    start = 0
    for chunk in chunks:
        head, tail = needed_spans(geometry, *chunk)
        tokens = chunk[1]
        if not tail and (not head or head[-1] != tokens - 1):
            tail = range(tokens - 1, tokens)
        kept += [torch.arange(start + span.start, start + span.stop) for span in (head, tail)]
        counts.append(len(head) + len(tail))
        start += tokens
    if sum(counts) == start:
        return
    device = forward_batch.positions.device
    selected = _to_device(torch.cat(kept), device)
    forward_batch.input_ids = forward_batch.input_ids[selected]
    forward_batch.positions = forward_batch.positions[selected]
    forward_batch.out_cache_loc = forward_batch.out_cache_loc[selected]
    forward_batch.spec_info.hidden_states = forward_batch.spec_info.hidden_states[selected]
    if forward_batch.mrope_positions is not None:
        forward_batch.mrope_positions = forward_batch.mrope_positions[:, selected]
    lengths = _to_device(torch.tensor(counts, dtype=torch.int32), device)
    forward_batch.extend_seq_lens = lengths
    forward_batch.extend_seq_lens_cpu = counts
    forward_batch.extend_start_loc = torch.cumsum(lengths, 0, dtype=torch.int32) - lengths
    forward_batch.extend_num_tokens = sum(counts)
    if forward_batch.extend_logprob_start_lens_cpu is not None:
        forward_batch.extend_logprob_start_lens_cpu = [0] * len(counts)
    if forward_batch.global_num_token_non_padded_cpu is not None:
        forward_batch.global_num_token_non_padded_cpu = sum(counts)
    if forward_batch.global_num_token_non_padded is not None:
        forward_batch.global_num_token_non_padded = torch.full_like(
            forward_batch.global_num_token_non_padded, sum(counts)
        )


def _to_device(values: Tensor, device: torch.device) -> Tensor:
    # From pinned memory: a copy from pageable memory would wait for the GPU.
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def can_skip(geometry: RingGeometry, batch: Any) -> bool:
    """Whether a prefill batch needs no draft forward at all: only chunks in the middle of their prompts.

    A request whose prompt ends in this batch needs one, since its last token is always needed.
    """
    return not any(span for chunk in chunks_of(batch) for span in needed_spans(geometry, *chunk))


def placeholder(worker: Any, batch: Any, next_token_ids: Tensor) -> Any:
    """The draft input a skipped prefill returns; the prompt's last chunk replaces it before any draft step.

    Args:
        worker: SGLang's `EagleDraftWorker`.
        next_token_ids: [requests] what the target sampled after its chunk.
    """
    from sglang.srt.speculative.eagle_info import EagleDraftInput
    from sglang.srt.speculative.eagle_utils import get_draft_recurrent_hidden_state_spec

    requests, device = len(batch.reqs), next_token_ids.device
    hidden_size, dtype = get_draft_recurrent_hidden_state_spec(worker.draft_runner)
    return EagleDraftInput(
        topk_p=torch.ones((requests, worker.topk), dtype=torch.float32, device=device),
        topk_index=torch.zeros((requests, worker.topk), dtype=torch.int64, device=device),
        hidden_states=torch.zeros((requests, hidden_size), dtype=dtype, device=device),
        bonus_tokens=next_token_ids,
        num_tokens_per_req=1,
        num_tokens_for_logprob_per_req=1,
    )
