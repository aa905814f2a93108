"""Verification by sampling: tokens come with the target's probabilities, whatever was drafted."""

from __future__ import annotations

import pytest
import torch

from harness.engine.cpu import sampling

VOCABULARY, GRID = 4, 50


def walk(
    children: list[int], siblings: list[int], tokens: list[int], probabilities: torch.Tensor, levels: int
) -> list[tuple[int, ...]]:
    """What one tree emits for every pair of coins on a grid: one for all nodes, one for the last draw."""
    nodes = len(tokens)
    coins = (torch.arange(GRID) + 0.5) / GRID
    first, last = (grid.reshape(-1) for grid in torch.meshgrid(coins, coins, indexing="ij"))
    count = first.numel()
    rows = torch.arange(count * nodes).view(count, nodes)
    predicts = torch.zeros(count * nodes, dtype=torch.int32)
    accepted = torch.full((count, levels), -1, dtype=torch.int32)
    lengths = torch.empty(count, dtype=torch.int32)
    sampling.verify_tree_by_sampling(
        predicts, accepted, lengths,
        torch.tensor([tokens] * count), rows, torch.tensor([children] * count),
        torch.tensor([siblings] * count),
        first[:, None].expand(count, nodes), last, probabilities.expand(count, nodes, VOCABULARY),
        torch.zeros(count, nodes, VOCABULARY),
    )  # fmt: skip
    assert ((accepted >= 0).sum(1) == lengths + 1).all()
    return [
        tuple(int(predicts[row]) for row in line[: length + 1])
        for line, length in zip(accepted.tolist(), lengths.tolist(), strict=True)
    ]


@pytest.mark.parametrize("drafted", range(VOCABULARY))
def test_first_token_of_a_chain_follows_the_target(drafted: int) -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.2, 0.0])
    emitted = walk([1, -1], [-1, -1], [3, drafted], probabilities, levels=2)
    shares = torch.bincount(torch.tensor([e[0] for e in emitted]), minlength=VOCABULARY) / len(emitted)
    torch.testing.assert_close(shares, probabilities, atol=0.011, rtol=0)
    # A draft counts as accepted exactly where it was emitted, and one more token follows it.
    assert all((len(e) == 2) == (e[0] == drafted) for e in emitted)


def test_first_token_of_a_tree_follows_the_target() -> None:
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4])
    emitted = walk([1, -1, -1, -1], [-1, 2, 3, -1], [0, 2, 0, 1], probabilities, levels=2)
    shares = torch.bincount(torch.tensor([e[0] for e in emitted]), minlength=VOCABULARY) / len(emitted)
    torch.testing.assert_close(shares, probabilities, atol=0.011, rtol=0)


def test_a_certain_target_accepts_its_own_token_and_no_other() -> None:
    certain = torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert set(walk([1, -1], [-1, -1], [0, 1], certain, 2)) == {(1, 1)}
    assert set(walk([1, -1], [-1, -1], [0, 2], certain, 2)) == {(1,)}


def test_a_chain_ends_at_its_last_level() -> None:
    certain = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert set(walk([1, 2, -1], [-1] * 3, [0, 0, 0], certain, levels=2)) == {(0, 0)}


def test_only_greedy_requests_are_verified_greedily() -> None:
    def original(*, is_all_greedy: bool, is_cpu: bool, is_hip: bool) -> bool:
        return is_all_greedy or is_cpu or is_hip

    assert sampling.verify_uses_greedy(original, is_all_greedy=True, is_cpu=True, is_hip=False)


def test_top_k_and_top_p() -> None:
    rows = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.7, 0.1, 0.1, 0.1]])
    kept = sampling.keep_top_k(rows, torch.tensor([2, 1]))
    torch.testing.assert_close(kept, torch.tensor([[0, 4 / 7, 0, 3 / 7], [1.0, 0, 0, 0]]))
    kept = sampling.keep_top_p(rows, torch.tensor([0.6, 0.7]))
    torch.testing.assert_close(kept, torch.tensor([[0, 4 / 7, 0, 3 / 7], [1.0, 0, 0, 0]]))
    torch.testing.assert_close(sampling.keep_top_p(rows, torch.tensor([1.0, 1.0])), rows)
