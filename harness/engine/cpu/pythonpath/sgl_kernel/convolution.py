"""The short causal convolution in front of a linear-attention layer (Mamba, arXiv:2312.00752, section 3.4).

    y_t = act(bias + sum_{j=0}^{width-1} w_j x_{t - width + 1 + j}), each channel by itself.

A request carries its last width - 1 inputs: `conv_states` [slots, channels, width - 1], oldest first.
Taps are added in a fixed order, so that a token's result doesn't depend on how many share the call.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

OPERATORS = ("causal_conv1d_fwd_cpu", "causal_conv1d_update_cpu")


def causal_conv1d_fn_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | bool | None = None,
    conv_states: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    cache_indices: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    seq_lens_cpu: list[int] | None = None,
    **unused: object,
) -> Tensor:
    """Prefill: convolve each request's new tokens and keep its last width - 1 inputs.

    Args:
        x: [channels, tokens], requests one after another.
        weight: [channels, width]; bias: [channels] or None; activation: "silu", "swish", True or None.
        conv_states: updated in place at `cache_indices` [requests].
        has_initial_state: [requests] bool; where False the past is zero, whatever the slot holds.
        query_start_loc: [requests + 1] where each request begins.

    Returns:
        A tensor of x's shape and dtype.
    """
    if query_start_loc is None:
        raise ValueError("causal_conv1d_fn_cpu needs query_start_loc")
    starts = query_start_loc.tolist()
    requests = len(starts) - 1
    continued = has_initial_state.tolist() if has_initial_state is not None else [False] * requests
    slots = cache_indices.tolist() if cache_indices is not None else list(range(requests))
    kept = weight.shape[-1] - 1
    out = torch.empty_like(x)
    for i in range(requests):
        start, end = starts[i], starts[i + 1]
        if end == start or slots[i] < 0:
            continue
        if continued[i] and conv_states is not None:
            past = conv_states[slots[i]].to(x.dtype)
        else:
            past = x.new_zeros(x.shape[0], kept)
        inputs = torch.cat([past, x[:, start:end]], dim=-1)
        out[:, start:end] = _activate(_taps(inputs, weight, bias), activation)
        if conv_states is not None and kept:
            conv_states[slots[i]] = inputs[:, -kept:].to(conv_states.dtype)
    return out


def causal_conv1d_update_cpu(
    x: Tensor,
    conv_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | bool | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
    num_accept_tokens: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
    **unused: object,
) -> Tensor:
    """Decode (the state moves on) or verify (the state stays, each token's window is stored apart).

    Args:
        x: [requests, channels], or [requests, channels, tokens].
        conv_state_indices: [requests] slots in `conv_states`.
        intermediate_conv_window: verify: [scratch rows, tokens, channels, width - 1] takes the window after
            each token, at rows `intermediate_state_indices`; the accepted one is copied back afterwards.
        retrieve_next_token, retrieve_next_sibling: verify of a tree: [requests, tokens] links; a token's past
            is then its ancestors.
        retrieve_parent_token: [requests, tokens], written: each token's parent, for the recurrence.

    Returns:
        A tensor of x's shape and dtype; several tokens are stored token-major, as their caller views them so.
    """
    single = x.dim() == 2
    inputs = x[..., None] if single else x
    requests = inputs.shape[0]
    slots = conv_state_indices if conv_state_indices is not None else torch.arange(requests)
    # The pool may be narrower than x: a decode step sees earlier inputs as the pool kept them, and so must
    # each token of a verify; its own input it sees in full.
    sequence = torch.cat([conv_states[slots], inputs.to(conv_states.dtype)], dim=-1)
    kept = weight.shape[-1] - 1
    tokens = inputs.shape[-1]
    if intermediate_conv_window is None:
        earlier = [sequence[..., j : j + tokens] for j in range(kept)]
        conv_states[slots] = sequence[..., -kept:]
    else:
        if retrieve_next_token is None or retrieve_next_sibling is None:
            windows = sequence.unfold(-1, kept + 1, 1).transpose(1, 2)
        else:
            parents = parents_from_links(retrieve_next_token[:requests], retrieve_next_sibling[:requests])
            if retrieve_parent_token is not None:
                retrieve_parent_token[:requests] = parents
            windows = _tree_windows(sequence, parents, kept)
        # windows [requests, tokens, channels, width]: a token's inputs, its own last
        earlier = list(windows[..., :-1].transpose(1, 2).unbind(-1))
        rows = (
            intermediate_state_indices if intermediate_state_indices is not None else torch.arange(requests)
        )
        intermediate_conv_window[rows, :tokens] = windows[..., 1:].to(intermediate_conv_window.dtype)
    out = _activate(_weighted([*earlier, inputs], weight, bias), activation, exact=True).to(x.dtype)
    if single:
        return out[..., 0]
    return out.transpose(1, 2).contiguous().transpose(1, 2)


causal_conv1d_fwd_cpu = causal_conv1d_fn_cpu


def parents_from_links(next_token: Tensor, next_sibling: Tensor) -> Tensor:
    """[requests, tokens] parent of each token, 0 for the root and for tokens that nothing links to.

    Children and siblings come after the token that links to them, so one pass in order suffices.
    """
    parents = torch.zeros_like(next_token)
    for i, (children, siblings) in enumerate(zip(next_token.tolist(), next_sibling.tolist(), strict=True)):
        found = [0] * len(children)
        for token, (child, sibling) in enumerate(zip(children, siblings, strict=True)):
            if child != -1:
                found[child] = token
            if sibling != -1:
                found[sibling] = found[token]
        parents[i] = torch.tensor(found, dtype=parents.dtype)
    return parents


def _taps(sequence: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[..., channels, width - 1 + tokens] -> [..., channels, tokens] in float32, before the activation."""
    width = weight.shape[-1]
    tokens = sequence.shape[-1] - width + 1
    return _weighted([sequence[..., j : j + tokens] for j in range(width)], weight, bias)


def _weighted(shifted: list[Tensor] | tuple[Tensor, ...], weight: Tensor, bias: Tensor | None) -> Tensor:
    """sum_j w_j shifted_j, oldest first; each [..., channels, tokens]."""
    taps = weight.float()
    total = shifted[0].float() * taps[:, 0:1]
    for j in range(1, len(shifted)):
        total += shifted[j].float() * taps[:, j : j + 1]
    return total if bias is None else total + bias.float()[:, None]


def _tree_windows(sequence: Tensor, parents: Tensor, kept: int) -> Tensor:
    """[requests, tokens, channels, width] inputs of each token: carried past, ancestors, itself."""
    requests, channels, length = sequence.shape
    tokens = length - kept
    trail = torch.empty(requests, tokens, kept + 1, dtype=torch.int64)
    for i, row in enumerate(parents.tolist()):
        for token in range(tokens):
            at = token
            for place in range(kept, -1, -1):
                trail[i, token, place] = at + kept
                # the root's past is the carried one, which lies just before it
                at = row[at] if at > 0 else at - 1
    index = trail.view(requests, 1, -1).expand(requests, channels, -1)
    return sequence.gather(-1, index).view(requests, channels, tokens, kept + 1).transpose(1, 2)


def _activate(y: Tensor, activation: str | bool | None, exact: bool = False) -> Tensor:
    """SiLU or nothing. `exact` evaluates it in float64: the vector and the scalar form of PyTorch's float32
    exponential differ in the last bit, and which one a value meets depends on the size of the call."""
    if activation in ("silu", "swish", True):
        return functional.silu(y.double()).float() if exact else functional.silu(y)
    return y
