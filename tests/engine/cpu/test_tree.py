"""Speculation trees against trees of plain objects."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.cpu.environment import cpu_environment
from harness.engine.cpu.pythonpath.sgl_kernel import tree


@dataclass
class Node:
    """A node of a drawn tree; `number` counts the draft's candidates."""

    number: int
    score: float
    depth: int
    parent: Node | None
    children: list[Node] = field(default_factory=list)

    def path(self) -> list[Node]:
        return [*(self.parent.path() if self.parent else []), self]


def draw_tree(
    rng: random.Random, topk: int, steps: int, nodes: int
) -> tuple[list[Node], list[int], list[int]]:
    """Draft as EAGLE-2 does: each level extends the topk best candidates of the last by topk each.

    Returns the chosen nodes (root first, then by candidate number), parent_list and selected_index.
    """
    root = Node(-1, 1.0, 0, None)
    candidates: list[Node] = []
    parent_list, frontier = [-1], [root]
    for step in range(steps):
        level: list[Node] = []
        for parent in frontier:
            for _ in range(topk):
                level.append(
                    Node(len(candidates) + len(level), parent.score * rng.random(), parent.depth + 1, parent)
                )
        candidates += level
        frontier = sorted(level, key=lambda node: -node.score)[:topk]
        if step < steps - 1:
            parent_list += [node.number for node in frontier]
    chosen = sorted(
        sorted(candidates, key=lambda node: -node.score)[: nodes - 1], key=lambda node: node.number
    )
    kept = [root, *chosen]
    for node in chosen:
        assert node.parent is not None and node.parent in kept
        node.parent.children.append(node)
    return kept, parent_list, [node.number for node in chosen]


def draw_batch(seed: int, topk: int, steps: int, nodes: int, requests: int):
    rng = random.Random(seed)
    drawn = [draw_tree(rng, topk, steps, nodes) for _ in range(requests)]
    lengths = [rng.randint(1, 30) for _ in range(requests)]
    parent_list = torch.tensor([p for _, p, _ in drawn])
    selected = torch.tensor([s for _, _, s in drawn])
    return [kept for kept, _, _ in drawn], parent_list, selected, lengths


def build(parent_list, selected, lengths, topk, steps, nodes, mode):
    requests = len(lengths)
    size = requests * nodes * nodes if mode == tree.QLEN_ONLY else sum(nodes * (n + nodes) for n in lengths)
    mask = torch.ones(size, dtype=torch.bool)
    positions = torch.full((requests * nodes,), -9)
    links = torch.full((3, requests, nodes), -1)
    tree.build_tree_kernel_efficient_cpu(
        parent_list, selected, torch.tensor(lengths), mask, positions, *links, topk, steps, nodes, mode
    )
    return mask, positions.view(requests, nodes), links


sizes = st.sampled_from([(1, 3, 4), (1, 6, 7), (2, 3, 6), (2, 4, 9), (4, 3, 12), (3, 5, 17), (4, 2, 2)])


@settings(max_examples=80)
@given(size=sizes, requests=st.integers(1, 3), mode=st.sampled_from([0, 1]), seed=st.integers(0, 9999))
def test_build(size, requests, mode, seed) -> None:
    topk, steps, nodes = size
    trees, parent_list, selected, lengths = draw_batch(seed, topk, steps, nodes, requests)
    mask, positions, (index, child, sibling) = build(parent_list, selected, lengths, topk, steps, nodes, mode)
    assert index.tolist() == [[i * nodes + j for j in range(nodes)] for i in range(requests)]
    start = 0
    for i, (kept, length) in enumerate(zip(trees, lengths, strict=True)):
        width = nodes if mode == tree.QLEN_ONLY else length + nodes
        block = mask[start : start + nodes * width].view(nodes, width)
        start += nodes * width
        assert block[:, : width - nodes].all()
        for row, node in enumerate(kept):
            seen = [kept.index(ancestor) for ancestor in node.path()]
            assert block[row, width - nodes :].nonzero().flatten().tolist() == sorted(seen)
            assert positions[i, row] == length + node.depth
            links, at = [], int(child[i, row])
            while at != -1:
                links.append(at)
                at = int(sibling[i, at])
            assert links == [kept.index(c) for c in node.children]
    assert start == mask.numel()


@settings(max_examples=80)
@given(size=sizes, requests=st.integers(1, 3), seed=st.integers(0, 9999))
def test_verify(size, requests, seed) -> None:
    """A vocabulary of three tokens makes deep paths, dead ends and equal siblings common."""
    topk, steps, nodes = size
    trees, parent_list, selected, lengths = draw_batch(seed, topk, steps, nodes, requests)
    _, _, (index, child, sibling) = build(parent_list, selected, lengths, topk, steps, nodes, tree.QLEN_ONLY)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 3, (requests, nodes), generator=generator)
    target = torch.randint(0, 3, (requests, nodes), generator=generator)
    predicts = torch.full((requests * nodes + 1,), -5, dtype=torch.int32)
    accept_index = torch.full((requests, steps + 1), -1, dtype=torch.int32)
    counts = torch.full((requests,), -5, dtype=torch.int32)
    tree.verify_tree_greedy_cpu(predicts, accept_index, counts, tokens, index, child, sibling, target)
    expected_predicts = torch.full_like(predicts, -5)
    for i, kept in enumerate(trees):
        path = [0]
        while True:
            want = target[i, path[-1]]
            following = [kept.index(c) for c in kept[path[-1]].children if tokens[i, kept.index(c)] == want]
            if not following:
                break
            path.append(following[0])
        rows = [i * nodes + node for node in path]
        assert accept_index[i].tolist() == rows + [-1] * (steps + 1 - len(rows))
        assert counts[i] == len(path) - 1
        for row in rows:
            expected_predicts[row] = target.flatten()[row]
    assert torch.equal(predicts, expected_predicts)


@settings(max_examples=40)
@given(topk=st.integers(1, 4), steps=st.integers(1, 6), requests=st.integers(0, 3), seed=st.integers(0, 999))
def test_draft_decode_table(topk, steps, requests, seed) -> None:
    rng = random.Random(seed)
    table = torch.arange(6 * 60).int().view(6, 60)
    rows = rng.sample(range(6), requests)
    lengths = [rng.randint(1, 60 - topk * steps) for _ in rows]
    built = tree.build_draft_decode_metadata_cpu(
        table,
        torch.tensor(rows, dtype=torch.int64),
        torch.tensor(lengths, dtype=torch.int64),
        topk,
        steps,
        60,
    )
    assert built.shape[0] == requests * topk
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        for branch in range(topk):
            begin = length + branch * steps
            expected = table[row, :length].tolist() + table[row, begin : begin + steps].tolist()
            assert built[i * topk + branch, : length + steps].tolist() == expected
    if topk == 1 and requests == 1:
        assert built.data_ptr() == table[rows[0]].data_ptr()


def test_bit_packed_masks_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="mask mode 2"):
        empty = torch.empty(0)
        tree.build_tree_kernel_efficient_cpu(*[empty] * 8, 1, 1, 2, 2)


def test_idle_batches_do_nothing() -> None:
    empty, grid = torch.empty(0, dtype=torch.int64), torch.empty(0, 4, dtype=torch.int64)
    tree.build_tree_kernel_efficient_cpu(grid, grid, empty, empty.bool(), empty, grid, grid, grid, 2, 3, 4, 1)
    tree.verify_tree_greedy_cpu(empty, grid, empty, grid, grid, grid, grid, grid)


UPSTREAM_JOB = """
import sys
import torch
from sglang.kernels.ops.speculative import spec_tree
inputs = torch.load(sys.argv[1])
outputs = []
for parent_list, selected, lengths, topk, steps, nodes, mode, tokens, target in inputs:
    requests = lengths.shape[0]
    size = requests * nodes * nodes if mode == 1 else int((nodes * (lengths + nodes)).sum())
    mask, positions = torch.ones(size, dtype=torch.bool), torch.full((requests * nodes,), -9)
    links = torch.full((3, requests, nodes), -1)
    spec_tree.sgl_build_tree_kernel_triton(
        parent_list, selected, lengths, mask, positions, *links, topk, steps, nodes,
        spec_tree.TreeMaskMode(mode),
    )
    predicts = torch.full((requests * nodes + 1,), -5, dtype=torch.int32)
    accept_index = torch.full((requests, steps + 1), -1, dtype=torch.int32)
    counts = torch.full((requests,), -5, dtype=torch.int32)
    spec_tree.verify_tree_greedy_triton(predicts, accept_index, counts, tokens, *links, target)
    outputs.append((mask, positions, links, predicts, accept_index, counts))
torch.save(outputs, sys.argv[2])
"""


def test_same_as_upstream_triton_kernels(tmp_path) -> None:
    """SGLang's own kernels for GPUs, run by Triton's interpreter, on the same trees."""
    inputs = []
    for seed in range(6):
        topk, steps, nodes = [(1, 6, 7), (2, 4, 9), (4, 3, 12)][seed % 3]
        _, parent_list, selected, lengths = draw_batch(seed, topk, steps, nodes, 2)
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, 3, (2, nodes), generator=generator)
        target = torch.randint(0, 3, (2, nodes), generator=generator)
        inputs.append(
            (parent_list, selected, torch.tensor(lengths), topk, steps, nodes, seed % 2, tokens, target)
        )
    torch.save(inputs, tmp_path / "inputs.pt")
    subprocess.run(
        [sys.executable, "-c", UPSTREAM_JOB, str(tmp_path / "inputs.pt"), str(tmp_path / "outputs.pt")],
        env={**os.environ, **cpu_environment(1, interpret_triton=True)},
        check=True,
        timeout=300,
    )
    for case, theirs in zip(inputs, torch.load(tmp_path / "outputs.pt"), strict=True):
        parent_list, selected, lengths, topk, steps, nodes, mode, tokens, target = case
        mask, positions, links = build(parent_list, selected, lengths.tolist(), topk, steps, nodes, mode)
        predicts = torch.full((2 * nodes + 1,), -5, dtype=torch.int32)
        accept_index = torch.full((2, steps + 1), -1, dtype=torch.int32)
        counts = torch.full((2,), -5, dtype=torch.int32)
        tree.verify_tree_greedy_cpu(predicts, accept_index, counts, tokens, *links, target)
        mine = (mask, positions.flatten(), links, predicts, accept_index, counts)
        for ours, upstream in zip(mine, theirs, strict=True):
            assert torch.equal(ours, upstream)
