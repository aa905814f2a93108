"""Slot and token bookkeeping."""

from __future__ import annotations

import torch

from harness.engine.cpu.pythonpath.sgl_kernel import slots


def table() -> torch.Tensor:
    """Row r, position p holds slot 100 r + p."""
    return (torch.arange(5)[:, None] * 100 + torch.arange(20)).int()


def test_assign_and_read_back() -> None:
    rows, start, end = torch.tensor([3, 1, 4]), torch.tensor([2, 7, 5]), torch.tensor([6, 8, 5])
    given, read = torch.tensor([11, 12, 13, 14, 15]), torch.empty(5, dtype=torch.int64)
    req_to_token = table()
    slots.assign_req_to_token_pool_cpu(rows, req_to_token, start, end, given, 20)
    assert req_to_token[3, 2:6].tolist() == [11, 12, 13, 14]
    assert req_to_token[1, 7] == 15
    req_to_token[3, 2:6], req_to_token[1, 7] = table()[3, 2:6], table()[1, 7]
    assert torch.equal(req_to_token, table())
    slots.assign_extend_cache_locs_cpu(rows, req_to_token, start, end, read, 20)
    assert read.tolist() == [302, 303, 304, 305, 107]


def test_draft_slots_follow_the_committed_ones_branch_by_branch() -> None:
    out = torch.empty(2 * 2 * 3, dtype=torch.int64)
    slots.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor([2, 0]), table(), torch.tensor([4, 9]), out, 20, 2, 3
    )
    assert out.view(2, 2, 3).tolist() == [[[204, 205, 206], [207, 208, 209]], [[9, 10, 11], [12, 13, 14]]]


def test_accepted_slots_are_packed() -> None:
    out = torch.full((6,), -7)
    accept_index = torch.tensor([[0, 2, -1], [4, -1, -1]])
    slots.fill_accept_out_cache_loc_cpu(accept_index.flatten(), torch.tensor([10, 11, 12, 13, 14, 15]), out)
    assert out.tolist() == [10, 12, 14, -7, -7, -7]


def test_bonus_token_is_the_last_emitted() -> None:
    bonus = torch.zeros(4, dtype=torch.int32)
    accepted = torch.tensor([5, 6, 7, 8, 9, 10])
    slots.fill_bonus_tokens_cpu(accepted, torch.tensor([3, 1], dtype=torch.int32), bonus, 3)
    assert bonus.tolist() == [7, 8, 0, 0]


def test_rotate() -> None:
    ids = torch.arange(9)
    starts, lengths = torch.tensor([0, 3, 3, 7]), torch.tensor([3, 0, 4, 2])
    slots.rotate_input_ids_cpu(ids, starts, lengths, torch.tensor([[90], [91], [92], [93]]))
    assert ids.tolist() == [1, 2, 90, 4, 5, 6, 92, 8, 93]
    ids = torch.arange(4)
    select = torch.tensor([1])
    slots.rotate_input_ids_cpu(ids, torch.tensor([0]), torch.tensor([4]), torch.tensor([50]), select)
    assert ids.tolist() == [1, 50, 3, 3]


def test_copy_moves_slots_of_every_buffer_and_survives_overlap() -> None:
    keys, values = torch.randn(12, 2, 4).bfloat16(), torch.randn(12, 1, 4)
    before_keys, before_values = keys.clone(), values.clone()
    pointers = torch.tensor([keys.data_ptr(), values.data_ptr()], dtype=torch.uint64)
    strides = torch.tensor([keys.stride(0) * 2, values.stride(0) * 4])
    target, source = torch.tensor([3, 4, 5]), torch.tensor([2, 3, 9])
    slots.copy_all_layer_kv_cache_cpu(pointers, strides, target, source)
    before_keys[target], before_values[target] = before_keys[source], before_values[source]
    assert torch.equal(keys, before_keys) and torch.equal(values, before_values)


def test_idle_batches_do_nothing() -> None:
    none = torch.empty(0, dtype=torch.int64)
    req_to_token = table()
    slots.assign_req_to_token_pool_cpu(none, req_to_token, none, none, none, 20)
    slots.assign_extend_cache_locs_cpu(none, req_to_token, none, none, none, 20)
    slots.assign_draft_cache_locs_contiguous_cpu(none, req_to_token, none, none, 20, 2, 3)
    slots.fill_accept_out_cache_loc_cpu(none, none, none)
    slots.fill_bonus_tokens_cpu(none, none, none, 3)
    slots.rotate_input_ids_cpu(none, none, none, none)
    slots.copy_all_layer_kv_cache_cpu(none, none, none, none)
    assert torch.equal(req_to_token, table())
