"""Speculation trees: building them from the draft's choices, verifying them, and addressing their KV.

A tree has `num_draft_tokens` nodes; node 0 is the last committed token. With topk = 1 it is a chain. Trees
follow EAGLE-2 (arXiv:2406.16858): the draft expands topk candidates a level, and the best-scoring
`num_draft_tokens - 1` of all candidates, in the order they were drawn, become nodes 1, 2, ... Verification is
that of SpecInfer (arXiv:2305.09781) for greedy decoding: walk down while a child carries the target's token.

Links are stored as SGLang does: the first child of a node, its next sibling, and -1 for none.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

FULL_MASK = 0
QLEN_ONLY = 1


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill the tree's mask, positions and links (all tensors from `tree_mask` on are outputs).

    Args:
        parent_list: [requests, ...] candidate number of the parent of each group of topk candidates; group 0
            hangs on the root.
        selected_index: [requests, draft_token_num - 1] candidate numbers that became nodes, ascending.
        verified_seq_len: [requests] committed tokens.
        tree_mask: bool, flat. QLEN_ONLY: [requests, nodes, nodes], true where a row's node sees the column's.
            FULL_MASK: per request [nodes, committed + nodes]; the committed columns are left as they are.
        positions: [requests * nodes] committed tokens plus the node's depth.
        retrieve_index: [requests, nodes] row of the node in the flattened batch.
        retrieve_next_token, retrieve_next_sibling: [requests, nodes] first child and next sibling, or -1.
        depth: greatest depth of a node.

    Raises:
        NotImplementedError: bit-packed masks, which SGLang uses on NPUs only.
    """
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"tree mask mode {int(tree_mask_mode)} is not available on CPU")
    requests, nodes = verified_seq_len.shape[0], draft_token_num
    if requests == 0:
        return
    rows = retrieve_index.view(requests, nodes)
    torch.arange(requests * nodes, out=rows.view(-1))
    if topk == 1:
        next_token, visible, levels = _chain(nodes)
        retrieve_next_token.copy_(next_token.expand(requests, nodes))
        retrieve_next_sibling.fill_(-1)
        torch.add(verified_seq_len[:, None].long(), levels, out=positions.view(requests, nodes))
        _write_mask(tree_mask, [visible] * requests, verified_seq_len, nodes, tree_mask_mode)
        return
    visible_by_request = []
    for i in range(requests):
        parents = _parents(parent_list[i].tolist(), selected_index[i].tolist(), topk, nodes)
        first_child, sibling = [-1] * nodes, [-1] * nodes
        for node in range(nodes - 1, 0, -1):
            parent = parents[node]
            if parent is not None:
                first_child[parent], sibling[node] = node, first_child[parent]
        visible, levels_of = _ancestry(parents, depth)
        retrieve_next_token[i] = torch.tensor(first_child)
        retrieve_next_sibling[i] = torch.tensor(sibling)
        positions[i * nodes : (i + 1) * nodes] = verified_seq_len[i] + torch.tensor(levels_of)
        visible_by_request.append(visible)
    _write_mask(tree_mask, visible_by_request, verified_seq_len, nodes, tree_mask_mode)


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree along the target's greedy tokens.

    Args:
        predicts: flat, written at the rows of the accepted nodes: the token the target emits after each.
        accept_index: [requests, levels], pre-filled with -1: rows of the accepted nodes, the root first.
        accept_token_num: [requests] accepted drafts, the root not counted.
        candidates: [requests, nodes] token of each node.
        retrive_index, retrive_next_token, retrive_next_sibling: see `build_tree_kernel_efficient_cpu`.
        target_predict: [requests, nodes] the target's greedy token after each node.
    """
    levels = accept_index.shape[1]
    wanted = target_predict.reshape(-1).tolist()
    tokens, rows = candidates.tolist(), retrive_index.tolist()
    children, siblings = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    emitted_rows: list[int] = []
    counts: list[int] = []
    for i in range(len(rows)):
        node, path = 0, [rows[i][0]]
        while len(path) < levels:
            want = wanted[path[-1]]
            child = children[i][node]
            while child != -1 and tokens[i][child] != want:
                child = siblings[i][child]
            if child == -1:
                break
            node = child
            path.append(rows[i][node])
        accept_index[i, : len(path)] = torch.tensor(path, dtype=accept_index.dtype)
        counts.append(len(path) - 1)
        emitted_rows += path
    if counts:
        accept_token_num.copy_(torch.tensor(counts))
        where = torch.tensor(emitted_rows)
        predicts[where] = target_predict.reshape(-1)[where].to(predicts.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """Slot table of the draft's decode steps, one row per branch.

    Row i * topk + t holds the committed slots of request i, then the slots of its branch t, which lie at
    positions seq_len_i + t * num_steps onwards of the request's own row.

    Returns:
        [requests * topk, >= longest committed + num_steps] slots. A view for a single chain: the draft only
        reads it, and rows can be a million entries long.
    """
    rows, lengths = req_pool_indices.tolist(), seq_lens.tolist()
    if topk == 1 and len(rows) == 1:
        return req_to_token[rows[0] : rows[0] + 1]
    width = max(lengths, default=0) + num_steps
    table = req_to_token.new_empty((len(rows) * topk, width))
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        branches = table[i * topk : (i + 1) * topk]
        branches[:, :length] = req_to_token[row, :length]
        own = req_to_token[row, length : length + topk * num_steps]
        branches[:, length : length + num_steps] = own.view(topk, num_steps)
    return table


@lru_cache(maxsize=32)
def _chain(nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """First children, visibility and depths of a chain."""
    levels = torch.arange(nodes)
    next_token = levels + 1
    next_token[-1] = -1
    return next_token, torch.ones(nodes, nodes, dtype=torch.bool).tril_(), levels


def _parents(parent_list: list[int], selected: list[int], topk: int, nodes: int) -> list[int | None]:
    """Parent node of each node; None for the root, and for a node whose parent was not selected."""
    node_of = {
        candidate: node for node, candidate in reversed(list(enumerate(selected[: nodes - 1], start=1)))
    }
    parents: list[int | None] = [None]
    for candidate in selected[: nodes - 1]:
        group = candidate // topk
        parents.append(0 if group == 0 else node_of.get(parent_list[group]))
    return parents


def _ancestry(parents: list[int | None], depth: int) -> tuple[Tensor, list[int]]:
    """[nodes, nodes] bool: a node sees the root, itself and its ancestors; and each node's depth."""
    nodes = len(parents)
    visible = torch.zeros(nodes, nodes, dtype=torch.bool)
    visible[:, 0] = True
    levels = [0] * nodes
    for node in range(1, nodes):
        at: int | None = node
        while at is not None and at != 0 and levels[node] < depth:
            levels[node] += 1
            visible[node, at] = True
            at = parents[at]
    return visible, levels


def _write_mask(
    tree_mask: Tensor, visible: list[Tensor], verified_seq_len: Tensor, nodes: int, mode: int
) -> None:
    if mode == QLEN_ONLY:
        whole = torch.stack(visible) if len(visible) > 1 else visible[0]
        tree_mask[: whole.numel()] = whole.reshape(-1)
        return
    start = 0
    for length, tree in zip(verified_seq_len.tolist(), visible, strict=True):
        width = length + nodes
        tree_mask[start : start + nodes * width].view(nodes, width)[:, length:] = tree
        start += nodes * width
