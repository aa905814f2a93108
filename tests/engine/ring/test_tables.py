"""The tensors of the ring against its plain arithmetic."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.engine.geometry import RingGeometry
from harness.engine.settings import Mode as EngineMode
from harness.engine.tables import kept_positions, ring_slots
from tests.engine.ring.shapes import ROWS, lanes, make_state, shapes


@given(shapes(), st.lists(st.tuples(st.integers(0, ROWS), st.integers(0, 5000)), min_size=1, max_size=40))
def test_slots_match_the_plain_formula(
    shape: tuple[int, int, int, int], where: list[tuple[int, int]]
) -> None:
    sink, window, depth, topk = shape
    geometry = RingGeometry(sink, window, depth * topk)
    rows = torch.tensor([row for row, _ in where])
    positions = torch.tensor([position for _, position in where])
    assert ring_slots(geometry, rows, positions).tolist() == [geometry.slot(r, p) for r, p in where]


@given(shapes(), lanes, st.integers(-20, 40))
def test_kept_positions_match_the_plain_ranges(
    shape: tuple[int, int, int, int], where: list[tuple[int, int]], shift: int
) -> None:
    sink, window, depth, topk = shape
    geometry = RingGeometry(sink, window, depth * topk)
    committed = torch.tensor([length for _, length in where])
    recent = committed - window + shift
    positions, lengths = kept_positions(geometry, committed, recent, 400)
    for lane, (_, length) in enumerate(where):
        wanted = [p for span in geometry.kept(length, int(recent[lane])) for p in span]
        assert int(lengths[lane]) == len(wanted)
        assert positions[lane, : len(wanted)].tolist() == wanted


@given(st.sampled_from(["windowed", "ring"]), shapes(), lanes)
def test_read_table_lists_kept_slots_then_the_tail(
    mode: EngineMode, shape: tuple[int, int, int, int], where: list[tuple[int, int]]
) -> None:
    sink, window, depth, topk = shape
    state = make_state(mode, sink, window, depth, topk)
    rows = torch.tensor([row for row, _ in where])
    committed = torch.tensor([length for _, length in where])
    tail = committed[:, None] + torch.arange(depth - 1)
    table, lengths = state.read_table(rows, committed, committed - window, tail)
    assert table.dtype == torch.int32
    for lane, (row, length) in enumerate(where):
        kept = [p for span in state.geometry.kept(length, length - window) for p in span]
        positions = torch.tensor([*kept, *range(length, length + depth - 1)])
        assert int(lengths[lane]) == len(kept) <= sink + window
        wanted = state.slots(torch.tensor(row), positions).tolist()
        assert table[lane, : len(wanted)].tolist() == wanted


class Mode:
    """Stand-in for SGLang's ForwardMode."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_idle(self) -> bool:
        return self.name == "idle"

    def is_decode(self) -> bool:
        return self.name == "decode"

    def is_draft_extend_v2(self) -> bool:
        return self.name == "draft_extend"


def forward(name: str, rows: list[int], seq_lens: list[int], columns: int) -> SimpleNamespace:
    lengths = torch.tensor(seq_lens)
    return SimpleNamespace(
        forward_mode=Mode(name),
        batch_size=len(rows),
        req_pool_indices=torch.tensor(rows),
        seq_lens=lengths,
        positions=(lengths[:, None] + torch.arange(columns)).reshape(-1),
        out_cache_loc=torch.arange(len(rows) * columns) + 1000,
    )


@pytest.mark.parametrize("name", ["decode", "draft_extend"])
def test_writes_of_a_step_go_to_the_ring(name: str) -> None:
    state = make_state("ring", 4, 16, 5)
    batch = forward(name, [2, 5], [7, 100], 5)
    given_slots = batch.out_cache_loc
    before = given_slots.clone()
    state.remap_writes(batch)
    slot = state.geometry.slot
    assert batch.out_cache_loc.tolist() == [slot(r, n + i) for r, n in ((2, 7), (5, 100)) for i in range(5)]
    # The verify pass writes the slots that the draft was given: they must stay the target's.
    assert torch.equal(given_slots, before)


def test_a_windowed_draft_keeps_the_targets_slots() -> None:
    state = make_state("windowed", 4, 16, 5)
    batch = forward("decode", [2], [7], 4)
    wanted = batch.out_cache_loc.clone()
    state.remap_writes(batch)
    assert torch.equal(batch.out_cache_loc, wanted)


@given(st.integers(0, 6), st.integers(3, 20), st.integers(0, 90), st.integers(1, 120))
def test_a_chunk_longer_than_the_ring_writes_no_slot_twice(
    sink: int, window: int, first: int, tokens: int
) -> None:
    state = make_state("ring", sink, window, 3)
    batch = SimpleNamespace(
        forward_mode=Mode("prefill"),
        batch_size=1,
        req_pool_indices=torch.tensor([3]),
        seq_lens=torch.tensor([first + tokens]),
        extend_seq_lens=torch.tensor([tokens]),
        positions=torch.arange(first, first + tokens),
        out_cache_loc=torch.arange(tokens),
    )
    state.remap_writes(batch)
    written = batch.out_cache_loc[batch.out_cache_loc > 0].tolist()
    assert len(set(written)) == len(written)
    end = first + tokens
    wanted = [p for p in range(first, end) if p < sink or p >= end - window]
    assert written == [state.geometry.slot(3, position) for position in wanted]
