"""Which prompt tokens a pruned draft prefill keeps."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.engine.geometry import RingGeometry
from harness.engine.pruning import can_skip, needed_spans, prune


@given(st.integers(0, 9), st.integers(3, 40), st.integers(1, 300), st.integers(1, 90))
def test_chunks_together_keep_the_sink_and_the_window(
    sink: int, window: int, prompt: int, chunk: int
) -> None:
    geometry = RingGeometry(sink, window, 3)
    kept: list[int] = []
    for first in range(0, prompt, chunk):
        tokens = min(chunk, prompt - first)
        head, tail = needed_spans(geometry, first, tokens, prompt)
        assert not set(head) & set(tail)
        kept += [first + offset for span in (head, tail) for offset in span]
    assert kept == [p for p in range(prompt) if p < sink or p >= prompt - window]


def batch_of(chunks: list[tuple[int, int, int]]) -> tuple[SimpleNamespace, SimpleNamespace]:
    """A schedule batch and the draft's forward batch of (first, tokens, prompt) chunks."""
    total = sum(tokens for _, tokens, _ in chunks)
    batch = SimpleNamespace(
        reqs=[SimpleNamespace(full_untruncated_fill_ids=[0] * prompt) for _, _, prompt in chunks],
        prefix_lens=[first for first, _, _ in chunks],
        extend_lens=[tokens for _, tokens, _ in chunks],
    )
    positions = torch.cat([torch.arange(first, first + tokens) for first, tokens, _ in chunks])
    forward = SimpleNamespace(
        input_ids=torch.arange(total),
        positions=positions,
        out_cache_loc=torch.arange(total) + 50,
        mrope_positions=positions.expand(3, -1),
        spec_info=SimpleNamespace(hidden_states=torch.arange(total)[:, None].float()),
        seq_lens=torch.tensor([first + tokens for first, tokens, _ in chunks]),
        extend_prefix_lens=torch.tensor([first for first, _, _ in chunks]),
        extend_seq_lens=torch.tensor([tokens for _, tokens, _ in chunks]),
        extend_seq_lens_cpu=[tokens for _, tokens, _ in chunks],
        extend_start_loc=None,
        extend_num_tokens=total,
        extend_logprob_start_lens_cpu=[3] * len(chunks),
        global_num_token_non_padded_cpu=total,
        global_num_token_non_padded=torch.tensor(total),
    )
    return batch, forward


def test_every_per_token_field_is_cut_alike() -> None:
    chunks = [(0, 30, 30), (10, 20, 100), (0, 4, 4)]
    _, forward = batch_of(chunks)
    prefix, ends = forward.extend_prefix_lens.clone(), forward.seq_lens.clone()
    prune(RingGeometry(2, 8, 3), chunks, forward)
    # First chunk: sink 0, 1 and window 22..29. Second: mid-prompt, its last token only. Third: all.
    kept = [0, 1, *range(22, 30), 49, 50, 51, 52, 53]
    assert forward.input_ids.tolist() == kept
    assert forward.positions.tolist() == [0, 1, *range(22, 30), 29, 0, 1, 2, 3]
    assert forward.out_cache_loc.tolist() == [50 + i for i in kept]
    assert forward.mrope_positions.shape == (3, len(kept))
    assert forward.spec_info.hidden_states.flatten().tolist() == kept
    assert forward.extend_seq_lens.tolist() == forward.extend_seq_lens_cpu == [10, 1, 4]
    assert forward.extend_start_loc.tolist() == [0, 10, 11]
    assert forward.extend_num_tokens == forward.global_num_token_non_padded_cpu == 15
    assert int(forward.global_num_token_non_padded) == 15
    assert torch.equal(forward.extend_prefix_lens, prefix)
    assert torch.equal(forward.seq_lens, ends)


def test_a_chunk_keeps_its_last_token_beside_the_sink() -> None:
    chunks = [(0, 20, 400)]
    _, forward = batch_of(chunks)
    prune(RingGeometry(3, 8, 3), chunks, forward)
    assert forward.positions.tolist() == [0, 1, 2, 19]


def test_only_batches_in_the_middle_of_prompts_are_skipped() -> None:
    geometry = RingGeometry(4, 16, 5)
    middle, ending, first = (100, 50, 400), (350, 50, 400), (0, 50, 400)
    assert can_skip(geometry, batch_of([middle])[0])
    assert not can_skip(geometry, batch_of([ending])[0])
    assert not can_skip(geometry, batch_of([middle, ending])[0])
    assert not can_skip(geometry, batch_of([first])[0])
    assert can_skip(RingGeometry(0, 16, 5), batch_of([first])[0])
