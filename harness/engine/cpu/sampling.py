"""Verification by sampling on the CPU: SGLang 0.5.23 has no kernel there and commits the likeliest token.

Without this a speculative CPU server answers every temperature greedily (only a request's first token is
drawn), and no arm could be compared with another in distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def verify_uses_greedy(original: Callable[..., bool], *, is_all_greedy: bool, **devices: bool) -> bool:
    """Only greedy requests are verified greedily; for the others the missing kernels are put in place."""
    if original(is_all_greedy=is_all_greedy, **{**devices, "is_cpu": False}):
        return True
    from sglang.srt.speculative import eagle_utils as engine

    # Not hooks: where a name is None, a hook's propagation would overwrite every None of every module.
    for name, kernel in KERNELS.items():
        if getattr(engine, name) is None:
            setattr(engine, name, kernel)
    return False


def verify_tree_by_sampling(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Walk each tree so that the tokens emitted follow the target's distribution.

    At a node with target distribution q its children t1, t2, ... are tried in order against one coin u:
    t_k is taken when u < q(t1) + ... + q(t_k). Where none is, the next token is drawn from q without those
    tried. Each token then comes with probability q, whatever was drafted (SpecInfer, arXiv:2305.09781, for
    proposals that are certain). Thresholds below 1 accept more, and give that up.

    Args:
        predicts: flat, written at the rows of accepted nodes: the token emitted after each.
        accept_index: [requests, levels], pre-filled with -1: rows of the accepted nodes, the root first.
        accept_token_num: [requests] accepted drafts, the root not counted.
        candidates: [requests, nodes] token of each node.
        retrive_index, retrive_next_token, retrive_next_sibling: [requests, nodes] row of a node, its first
            child and its next sibling, -1 for none.
        uniform_samples: [requests, nodes] coins in [0, 1), one a node whose children are tried.
        uniform_samples_for_final_sampling: [requests] coin of the last token.
        target_probs: [requests, nodes, vocabulary].
        draft_probs, deterministic: not used; proposals are certain, and the walk is deterministic.
    """
    levels = accept_index.shape[1]
    tokens, rows = candidates.tolist(), retrive_index.tolist()
    children, siblings = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    for i in range(len(rows)):
        node, path, emitted = 0, [rows[i][0]], []
        refused: list[int] = []
        while len(path) < levels:
            coin, reached = float(uniform_samples[i, node]), 0.0
            child = children[i][node]
            refused = []
            while child != -1:
                share = float(target_probs[i, node, tokens[i][child]])
                reached += share
                if coin < reached / threshold_acc or share >= threshold_single:
                    break
                refused.append(tokens[i][child])
                child = siblings[i][child]
            if child == -1:
                break
            node, refused = child, []
            emitted.append(tokens[i][node])
            path.append(rows[i][node])
        emitted.append(_draw(target_probs[i, node], refused, float(uniform_samples_for_final_sampling[i])))
        accept_index[i, : len(path)] = torch.tensor(path, dtype=accept_index.dtype)
        accept_token_num[i] = len(path) - 1
        predicts[torch.tensor(path)] = torch.tensor(emitted, dtype=predicts.dtype)


def _draw(probabilities: Tensor, without: list[int], coin: float) -> int:
    """A token by inversion; where nothing but refused tokens has mass, the likeliest of all."""
    left = probabilities.double().clone()
    left[without] = 0
    reached = left.cumsum(0)
    if not float(reached[-1]) > 0:
        return int(probabilities.argmax())
    place = torch.searchsorted(reached, reached.new_tensor([coin * float(reached[-1])]), right=True)
    # A coin close to 1 may round to the end: the last token with mass is meant.
    return min(int(place), int(left.nonzero()[-1]))


def keep_top_k(probabilities: Tensor, top_ks: Tensor) -> Tensor:
    """[rows, vocabulary]: only each row's k likeliest tokens (and their equals), summing to 1 again."""
    ordered = probabilities.sort(dim=-1, descending=True).values
    last = top_ks.long().clamp(1, probabilities.shape[-1]).view(-1, 1) - 1
    return _normalised(probabilities.where(probabilities >= ordered.gather(-1, last), 0.0))


def keep_top_p(probabilities: Tensor, top_ps: Tensor) -> Tensor:
    """[rows, vocabulary]: the fewest likeliest tokens whose mass reaches p, summing to 1 again."""
    ordered, order = probabilities.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.empty_like(ordered, dtype=torch.bool).scatter_(-1, order, before < top_ps.view(-1, 1))
    return _normalised(probabilities.where(kept, 0.0))


def _normalised(mass: Tensor) -> Tensor:
    return mass / mass.sum(-1, keepdim=True)


KERNELS: dict[str, Callable[..., Any]] = {
    "tree_speculative_sampling_target_only": verify_tree_by_sampling,
    "top_k_renorm_prob": keep_top_k,
    "top_p_renorm_prob": keep_top_p,
}
"""Names of `sglang.srt.speculative.eagle_utils` that are None on a CPU, and what stands in for them."""
