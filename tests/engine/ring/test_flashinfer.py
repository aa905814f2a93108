"""Windowed FlashInfer drafts against plain attention over positions; FlashInfer's wrappers are stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.engine import pruning
from harness.engine.settings import Mode as EngineMode
from harness.engine.state import DraftState
from harness.errors import ConfigError
from tests.engine.ring.flashinfer_rig import DIM, HEADS, KV_HEADS, LAYER, History, Mode, runner, stand_ins
from tests.engine.ring.shapes import ROWS, make_state, shapes

few = settings(max_examples=8)
modes = st.sampled_from(["windowed", "ring"])
requests = st.lists(
    st.tuples(st.integers(1, ROWS), st.integers(1, 300)),
    min_size=1,
    max_size=4,
    unique_by=lambda lane: lane[0],
)
"""(row, committed tokens) of the requests of a batch."""
PADDING = 2


@pytest.fixture(autouse=True, scope="module")
def sglang() -> Iterator[Any]:
    with stand_ins() as module, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_FLASHINFER_USE_TENSOR_CORE", "false")
        yield module


def ours() -> Any:
    from harness.engine.backends import flashinfer

    return flashinfer


def state_of(mode: EngineMode, shape: tuple[int, int, int, int]) -> DraftState:
    state = make_state(mode, *shape)
    # No request's slot may be the dummy one.
    state.req_to_token[1:] += 1
    return state


def flat(values: list[Tensor]) -> Tensor:
    return torch.stack(values).reshape(len(values), -1)


def batch_of(mode: str, rows: list[int], seq_lens: list[int], **more: Any) -> SimpleNamespace:
    """A draft batch as SGLang's ForwardBatch, lengths on the host beside the device's."""
    lengths = torch.tensor(seq_lens)
    fields: dict[str, Any] = {
        "forward_mode": Mode(mode),
        "batch_size": len(rows),
        "req_pool_indices": torch.tensor(rows),
        "seq_lens": lengths,
        "seq_lens_cpu": lengths.clone(),
        "seq_lens_sum": sum(seq_lens),
        "encoder_lens": None,
        "spec_info": None,
        "kv_loc_plan": None,
        "cross_attention_custom_mask": None,
        "out_cache_loc": None,
        "out_cache_loc_is_physical": True,
    }
    return SimpleNamespace(**(fields | more))


# -- draft decode -----------------------------------------------------------------------------------------


def decode_batch(rows: list[int], committed: list[int], topk: int) -> SimpleNamespace:
    from sglang.srt.speculative.eagle_info import EagleDraftInput

    positions = torch.tensor(committed).repeat_interleave(topk)
    return batch_of("decode", rows, committed, spec_info=EagleDraftInput(), positions=positions)


def plan_decode(backend: Any, where: list[tuple[int, int]], topk: int, captured: bool) -> int:
    """Plan a draft phase; returns how many padded lanes follow the requests."""
    rows, committed = [list(values) for values in zip(*where, strict=True)]
    if not captured:
        backend.init_forward_metadata(decode_batch(rows, committed, topk))
        return 0
    lanes = len(rows) + PADDING
    backend.init_cuda_graph_state(ROWS, ROWS * topk)
    backend.init_forward_metadata_out_graph(decode_batch([0] * lanes, [1] * lanes, topk), in_capture=True)
    backend.cuda_graph_kv_indices.fill_(-(10**6))
    backend.views.table.fill_(-(10**6))
    padded = decode_batch(rows + [0] * PADDING, committed + [1] * PADDING, topk)
    # As the graph runner pads: lengths with 1, positions with 0.
    padded.positions[len(rows) * topk :] = 0
    backend.init_forward_metadata_out_graph(padded)
    return PADDING


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("host_plan", [False, True], ids=["device-plan", "host-plan"])
@few
@given(mode=modes, shape=shapes().filter(lambda shape: shape[2] >= 3), where=requests)
def test_each_decode_step_reads_sink_window_and_its_own_branch(
    captured: bool,
    host_plan: bool,
    mode: EngineMode,
    shape: tuple[int, int, int, int],
    where: list[tuple[int, int]],
) -> None:
    from sglang.srt.environ import envs

    _, window, depth, topk = shape
    state, steps = state_of(mode, shape), depth - 1
    history = History(state, seed=len(where))
    for row, committed in where:
        history.write(row, committed)
    backend = ours().WindowedMultiStep(runner(state, history.pool), topk, steps)
    with envs.SGLANG_OPT_FLASHINFER_DRAFT_HOST_INDPTR.override(host_plan):
        padding = plan_decode(backend, where, topk, captured)
    branches = [(row, n, n + branch * steps) for row, n in where for branch in range(topk)]
    for step, child in enumerate(backend.attn_backends):
        if captured:
            wrappers = child.decode_cuda_graph_metadata[len(where) + padding]
            child.forward_metadata = SimpleNamespace(decode_wrappers=wrappers, swa_out_cache_loc=None)
        own = [(row, start + step) for row, _, start in branches] + [(0, 0)] * (padding * topk)
        slots = torch.stack([state.slots(torch.tensor(row), torch.tensor(p)) for row, p in own])
        keys, values = (flat([kind[lane] for lane in own]) for kind in (history.keys, history.values))
        query = history.random(len(own), HEADS * DIM)
        forward = SimpleNamespace(out_cache_loc=slots, out_cache_loc_is_physical=True)
        output = child.forward_decode(query, keys, values, LAYER, forward)
        for lane, (row, committed, start) in enumerate(branches):
            read = [*history.kept(committed, committed - window), *range(start, start + step + 1)]
            torch.testing.assert_close(output[lane], history.attention(row, query[lane], read))


# -- draft prefill ----------------------------------------------------------------------------------------


def prefill_batch(history: History, chunks: list[tuple[int, int, int]]) -> SimpleNamespace:
    """Chunks (row, first position, tokens); each token's embedding is its position."""
    positions = [(row, first + i) for row, first, tokens in chunks for i in range(tokens)]
    return batch_of(
        "prefill",
        [row for row, _, _ in chunks],
        [first + tokens for _, first, tokens in chunks],
        extend_prefix_lens=torch.tensor([first for _, first, _ in chunks], dtype=torch.int32),
        extend_prefix_lens_cpu=[first for _, first, _ in chunks],
        extend_seq_lens=torch.tensor([tokens for _, _, tokens in chunks], dtype=torch.int32),
        extend_seq_lens_cpu=[tokens for _, _, tokens in chunks],
        extend_logprob_start_lens_cpu=None,
        global_num_token_non_padded_cpu=None,
        global_num_token_non_padded=None,
        mrope_positions=None,
        input_ids=torch.arange(len(positions)),
        positions=torch.tensor([position for _, position in positions]),
        out_cache_loc=torch.stack(
            [history.state.slots(torch.tensor(row), torch.tensor(p)) for row, p in positions]
        ),
        spec_info=SimpleNamespace(hidden_states=torch.arange(len(positions))),
    )


def run_extend(history: History, backend: Any, batch: Any) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
    """Outputs, queries and (row, position) of a forward's tokens, each request's own counted by the batch."""
    counts = batch.extend_seq_lens.tolist()
    rows = [row for row, n in zip(batch.req_pool_indices.tolist(), counts, strict=True) for _ in range(n)]
    tokens = list(zip(rows, batch.positions.tolist(), strict=True))
    query = history.random(len(tokens), HEADS * DIM)
    keys, values = (flat([kind[token] for token in tokens]) for kind in (history.keys, history.values))
    return backend.forward_extend(query, keys, values, LAYER, batch), query, tokens


prompts = st.lists(
    st.tuples(st.integers(1, ROWS), st.integers(1, 110)),
    min_size=1,
    max_size=3,
    unique_by=lambda lane: lane[0],
)


@pytest.mark.parametrize("multimodal", [False, True], ids=["text", "multimodal"])
@few
@given(modes, shapes(), prompts, st.integers(8, 90), st.booleans())
# Chunks longer than window and sink, and longer than the window alone, beside a short one.
@example("ring", (4, 10, 3, 1), [(1, 100), (2, 37)], 30, False)
@example("ring", (4, 10, 3, 1), [(1, 60), (2, 20)], 12, False)
@example("windowed", (4, 10, 3, 1), [(1, 100), (2, 37)], 30, True)
def test_a_chunked_prompt_ends_as_if_the_window_alone_were_read(
    multimodal: bool,
    mode: EngineMode,
    shape: tuple[int, int, int, int],
    lengths: list[tuple[int, int]],
    chunk: int,
    pruned: bool,
) -> None:
    _, window, _, _ = shape
    state = state_of(mode, shape)
    history = History(state, seed=chunk)
    backend = ours().WindowedExtend(runner(state, history.pool, multimodal))
    for first in range(0, max(length for _, length in lengths), chunk):
        alive = [(row, length) for row, length in lengths if length > first]
        chunks = [(row, first, min(chunk, length - first)) for row, length in alive]
        batch = prefill_batch(history, chunks)
        if pruned:
            whole = [(*span[1:], length) for span, (_, length) in zip(chunks, alive, strict=True)]
            pruning.prune(state.geometry, whole, batch)
        state.remap_writes(batch)
        backend.init_forward_metadata(batch)
        output, query, tokens = run_extend(history, backend, batch)
        for row, _, length in [(*span[:2], span[1] + span[2]) for span in chunks]:
            mine = [i for i, token in enumerate(tokens) if token[0] == row]
            own = [tokens[i][1] for i in mine]
            last = mine[-1]
            if not pruned or (row, length) in alive:
                wanted = history.attention(row, query[last], history.kept(length, length - window))
                torch.testing.assert_close(output[last], wanted)
            if pruned:
                continue
            # The tokens before it: the prefix that the last one may read, and the chunk up to themselves.
            prefix = history.kept(first, length - window)
            for i, token in enumerate(mine[:-1]):
                wanted = history.attention(row, query[token], prefix + own[: i + 1])
                torch.testing.assert_close(output[token], wanted)
    for row, length in lengths:
        kept = torch.tensor(history.kept(length, length - window))
        slots = state.slots(torch.tensor(row), kept)
        torch.testing.assert_close(history.pool.keys[slots], history.keys[row, kept])


# -- draft extend after a verify --------------------------------------------------------------------------


def draft_extend_batch(state: DraftState, where: list[tuple[int, int]], padding: int) -> SimpleNamespace:
    """Every request's d tokens past its committed ones; padded lanes as the graph runner makes them."""
    from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

    depth, lanes = state.settings.draft_tokens, len(where) + padding
    rows = [row for row, _ in where]
    committed = torch.tensor([n for _, n in where])
    positions = (committed[:, None] + torch.arange(depth)).reshape(-1)
    slots = torch.stack(
        [state.slots(torch.tensor(row), torch.tensor(n + i)) for row, n in where for i in range(depth)]
    )
    batch = batch_of(
        "draft_extend",
        rows,
        (committed + depth).tolist(),
        extend_prefix_lens=committed.to(torch.int32),
        extend_prefix_lens_cpu=committed.tolist(),
        extend_seq_lens=torch.full((len(where),), depth, dtype=torch.int32),
        extend_seq_lens_cpu=[depth] * len(where),
        positions=positions,
        out_cache_loc=slots,
        spec_info=EagleDraftExtendInput(
            num_correct_drafts=torch.zeros(lanes, dtype=torch.int32), num_tokens_per_req=depth
        ),
    )
    state.remap_writes(batch)
    assert torch.equal(batch.out_cache_loc, slots)
    batch.batch_size = lanes
    # The graph runner hands over its whole buffers: longer than the batch.
    spare = 3
    batch.req_pool_indices = torch.tensor(rows + [0] * (padding + spare))
    batch.seq_lens = torch.tensor([n + depth for _, n in where] + [1] * (padding + spare))
    batch.seq_lens_cpu = batch.seq_lens.clone()
    batch.seq_lens_sum = int(batch.seq_lens[:lanes].sum())
    batch.out_cache_loc = torch.nn.functional.pad(slots, (0, padding * depth))
    batch.positions = torch.nn.functional.pad(positions, (0, padding * depth))
    return batch


def extend_outputs(history: History, where: list[tuple[int, int]], backend: Any, batch: Any) -> None:
    """Run the planned draft extend and compare each request's tokens."""
    state = history.state
    depth, window = state.settings.draft_tokens, state.geometry.window_tokens
    own = [(row, n + i) for row, n in where for i in range(depth)]
    own += [(0, 0)] * (batch.out_cache_loc.shape[0] - len(own))
    keys, values = (flat([kind[lane] for lane in own]) for kind in (history.keys, history.values))
    query = history.random(len(own), HEADS * DIM)
    output = backend.forward_extend(query, keys, values, LAYER, batch)
    for lane, (row, committed) in enumerate(where):
        for i in range(depth):
            token = lane * depth + i
            read = [*history.kept(committed, committed - window), *range(committed, committed + i + 1)]
            torch.testing.assert_close(output[token], history.attention(row, query[token], read))


@few
@given(modes, shapes(), requests)
def test_an_eager_draft_extend_reads_the_window_before_its_tokens(
    mode: EngineMode, shape: tuple[int, int, int, int], where: list[tuple[int, int]]
) -> None:
    state = state_of(mode, shape)
    history = History(state, seed=1)
    for row, committed in where:
        history.write(row, committed)
    backend = ours().WindowedExtend(runner(state, history.pool))
    batch = draft_extend_batch(state, where, 0)
    for name in ("req_pool_indices", "seq_lens", "seq_lens_cpu"):
        setattr(batch, name, getattr(batch, name)[: len(where)])
    backend.init_forward_metadata(batch)
    extend_outputs(history, where, backend, batch)


@few
@given(modes, shapes(), st.lists(requests, min_size=1, max_size=3))
def test_a_captured_draft_extend_reads_the_window_and_its_own_slots(
    mode: EngineMode, shape: tuple[int, int, int, int], steps: list[list[tuple[int, int]]]
) -> None:
    """Captured once per batch size, replayed with other batches, padded lanes among them."""
    state = state_of(mode, shape)
    depth = state.settings.draft_tokens
    history = History(state, seed=2)
    backend = ours().WindowedExtend(runner(state, history.pool))
    backend.init_cuda_graph_state(ROWS, ROWS * depth)
    for lanes in range(1 + PADDING, 5 + PADDING)[: ROWS - PADDING]:
        empty = draft_extend_batch(state, [(0, 0)] * lanes, 0)
        empty.seq_lens = empty.seq_lens_cpu = torch.ones(lanes, dtype=torch.int64)
        backend.init_forward_metadata_out_graph(empty, in_capture=True)
    for where in steps:
        for row, committed in where:
            history.write(row, committed)
        backend.cuda_graph_kv_indices[0].fill_(-(10**6))
        backend.views.table.fill_(-(10**6))
        batch = draft_extend_batch(state, where, PADDING)
        backend.init_forward_metadata_out_graph(batch)
        wrappers = backend.draft_extend_cuda_graph_metadata[batch.batch_size]
        backend.forward_metadata = SimpleNamespace(
            prefill_wrappers=wrappers, use_ragged=False, swa_out_cache_loc=None, multi_item_params=None
        )
        extend_outputs(history, where, backend, batch)


# -- what cannot be honoured ------------------------------------------------------------------------------


def backend_with(**changes: Any) -> Any:
    state = state_of("ring", (4, 16, 5, 1))
    history = History(state, seed=0)
    for name, value in changes.items():
        setattr(history.pool, name, value)
    return ours().WindowedExtend(runner(state, history.pool))


def test_paged_own_keys_are_refused_at_start(sglang: Any) -> None:
    from sglang.srt.environ import envs

    with (
        envs.SGLANG_FLASHINFER_USE_PAGED.override(True),
        pytest.raises(ConfigError, match=r"SGLANG_FLASHINFER_USE_PAGED.*backend triton"),
    ):
        backend_with()


def test_a_dequantised_copy_is_refused_at_start(sglang: Any) -> None:
    kind = sglang.upstream.KVCacheAttentionAccessKind.DEQUANT_WORKSPACE
    with pytest.raises(ConfigError, match="4-bit KV cache"):
        backend_with(quantised=kind)


def test_a_piecewise_prefill_is_refused(sglang: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_with()
    monkeypatch.setattr(sglang.upstream, "is_in_tc_piecewise_cuda_graph", lambda: True)
    history = History(backend.state, seed=0)
    with pytest.raises(ConfigError, match="--cuda-graph-backend-prefill disabled"):
        backend.init_forward_metadata(prefill_batch(history, [(1, 0, 5)]))


def test_a_captured_prefill_is_refused() -> None:
    backend = backend_with()
    with pytest.raises(ConfigError, match="--cuda-graph-backend-prefill must be breakable or disabled"):
        backend.init_forward_metadata_out_graph(batch_of("prefill", [1], [5]))


def test_index_buffers_are_sized_by_the_window() -> None:
    state = state_of("ring", (4, 16, 5, 1))
    history = History(state, seed=0)
    extend = ours().WindowedExtend(runner(state, history.pool))
    decode = ours().WindowedMultiStep(runner(state, history.pool), 1, 4)
    assert extend.max_context_len == 4 + 16 + 5
    assert decode.max_context_len == 4 + 16 + 4
    assert decode.draft_window_size == 0
    assert KV_HEADS < HEADS  # else grouped heads would go untested
