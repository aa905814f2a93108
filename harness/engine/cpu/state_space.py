"""The selective state space of Mamba (arXiv:2312.00752) and Mamba2 (arXiv:2405.21060), in plain PyTorch.

Per head, with state S [head_dim, state_dim], inputs x_t [head_dim], B_t and C_t [state_dim]:

    S_t = exp(delta_t A) S_{t-1} + delta_t x_t B_t^T
    y_t = S_t C_t + D x_t
    delta_t = softplus(dt_t + dt_bias)

where A < 0 and group g of B and C serves heads g * heads / groups ... (g + 1) * heads / groups - 1.
SGLang has Triton kernels alone for it; these take their arguments, so that a hook can put them in their
place.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn import functional


def update_states(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
    pad_slot_id: int = -1,
    out: Tensor | None = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
) -> None:
    """Token by token, for decode (one token each) and verify (the same number of drafts each).

    Each step is the same sequence of operations on the same shapes whatever the number of tokens, so that a
    verify pass has the bits of as many decode steps.

    Args:
        state: the pool [slots, heads, head_dim, state_dim], read at `state_batch_indices` [requests], and
            written there unless `disable_state_update`.
        x, dt: [requests, heads, head_dim], or [requests, tokens, heads, head_dim].
        A: [heads, head_dim, state_dim]; D, dt_bias: [heads, head_dim] or None.
        B, C: [requests, (tokens,) groups, state_dim].
        out: of x's shape, written.
        intermediate_states_buffer: verify: [scratch rows, steps, heads, head_dim, state_dim] takes the state
            after each token, at rows `intermediate_state_indices`; the accepted one is copied back.
        retrieve_parent_token: verify of a tree: [requests, tokens] parents; a token continues its parent.

    Raises:
        NotImplementedError: a gate z, which SGLang's models apply by themselves, or no output tensor.
    """
    if z is not None or out is None:
        raise NotImplementedError("update_states takes no gate, and writes into a given tensor")
    if x.dim() == 3:
        x, dt, B, C, out = (tensor[:, None] for tensor in (x, dt, B, C, out))
    requests, steps, heads = x.shape[:3]
    if requests == 0:
        return
    # Float64 gates: PyTorch's vector and scalar float32 exponentials differ in the last bit, and which one
    # a value meets depends on the size of the call.
    delta = _distinct(dt).double()
    if dt_bias is not None:
        delta = delta + _distinct(dt_bias).double()
    if dt_softplus:
        delta = functional.softplus(delta)
    decay = torch.exp(delta[..., None] * _distinct(A).double()).float()
    inputs = x.float()
    written = delta.float() * inputs
    written_to, read_from = (_per_head(tensor.float(), heads) for tensor in (B, C))

    slots = torch.arange(requests) if state_batch_indices is None else state_batch_indices[:requests].long()
    current = state[slots].float()
    history = current.new_empty(steps, *current.shape)
    parents = None if retrieve_parent_token is None else retrieve_parent_token[:requests].long()
    each = torch.arange(requests)
    for step in range(steps):
        if step > 0 and parents is not None:
            current = history[parents[:, step], each]
        current = current * decay[:, step]
        current += written[:, step, :, :, None] * written_to[:, step, :, None, :]
        y = (current * read_from[:, step, :, None, :]).sum(-1)
        if D is not None:
            y += D.float() * inputs[:, step]
        out[:, step] = y.to(out.dtype)
        if state.dtype != torch.float32:
            current = current.to(state.dtype).float()
        history[step] = current
    if intermediate_states_buffer is not None:
        rows = slots if intermediate_state_indices is None else intermediate_state_indices[:requests].long()
        intermediate_states_buffer[rows, :steps] = history.transpose(0, 1).to(
            intermediate_states_buffer.dtype
        )
    if not disable_state_update:
        state[slots] = current.to(state.dtype)


def scan_prompts(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    out: Tensor | None = None,
    state_dtype: torch.dtype | None = None,
    track_seq_idx: Tensor | None = None,
    **unused: object,
) -> tuple[Tensor, Tensor, None]:
    """Prefill of several requests, each by itself in chunks of `chunk_size` tokens.

    Args:
        x: [1, tokens, heads, head_dim]; dt: [1, tokens, heads]; A, D, dt_bias: [heads].
        B, C: [1, tokens, groups, state_dim].
        initial_states: [requests, heads, head_dim, state_dim], None for zeros.
        cu_seqlens: [requests + 1] where each request's tokens begin.
        out: of x's shape, written.
        state_dtype: of the returned states; x's by default.

    Returns:
        An empty tensor for the states before each chunk, which only a prefix cache's snapshots would read;
        the requests' states afterwards [requests, heads, head_dim, state_dim]; None.

    Raises:
        NotImplementedError: a prefix cache asks for snapshots, or a needed tensor is missing.
    """
    if track_seq_idx is not None and track_seq_idx.numel():
        raise NotImplementedError("Mamba2's prefix-cache snapshots are not available without a GPU")
    if cu_seqlens is None or out is None:
        raise NotImplementedError("scan_prompts needs cu_seqlens, and writes into a given tensor")
    heads, head_dim = x.shape[2:]
    delta = dt[0].float()
    if dt_bias is not None:
        delta = delta + dt_bias.float()
    if dt_softplus:
        delta = functional.softplus(delta)
    log_decay = (delta * A.float()).transpose(0, 1)
    written = (x[0].float() * delta[..., None]).transpose(0, 1)
    written_to, read_from = (_per_head(tensor[0].float(), heads).transpose(0, 1) for tensor in (B, C))
    starts = cu_seqlens.tolist()
    states = x.new_zeros(len(starts) - 1, heads, head_dim, B.shape[-1], dtype=torch.float32)
    if initial_states is not None:
        states.copy_(initial_states)
    for i, (start, end) in enumerate(itertools.pairwise(starts)):
        if start == end:
            continue
        span = slice(start, end)
        inputs, keys, queries = written[:, span], written_to[:, span], read_from[:, span]
        y, states[i] = state_space_chunks(inputs, log_decay[:, span], keys, queries, states[i], chunk_size)
        y = y.transpose(0, 1)
        if D is not None:
            y = y + D.float()[:, None] * x[0, span].float()
        out[0, span] = y.to(out.dtype)
    states = states.to(state_dtype or x.dtype)
    return states[:0], states, None


def state_space_chunks(
    x: Tensor, log_decay: Tensor, B: Tensor, C: Tensor, state: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """One sequence, chunk-parallel: attention with decaying weights inside a chunk, the state between chunks.

    With L the running sum of the logarithms of decay in a chunk and c its last token,
        y_i = sum_{j <= i} e^(L_i - L_j) (C_i.B_j) x_j + e^(L_i) S C_i
        S  <- e^(L_c) S + sum_j e^(L_c - L_j) x_j B_j^T.

    Args:
        x: [heads, tokens, head_dim], delta included; log_decay: [heads, tokens]; all in float32.
        B, C: [heads, tokens, state_dim].
        state: [heads, head_dim, state_dim].

    Returns:
        y [heads, tokens, head_dim] without the part of D, and the state afterwards.
    """
    outputs = []
    for start in range(0, x.shape[1], chunk_size):
        part = slice(start, start + chunk_size)
        inputs, keys, queries = x[:, part], B[:, part], C[:, part]
        total = log_decay[:, part].cumsum(-1)
        size = total.shape[-1]
        later = torch.ones(size, size, dtype=torch.bool).triu_(1)
        ratio = torch.exp((total[..., :, None] - total[..., None, :]).masked_fill_(later, -torch.inf))
        inside = (queries @ keys.transpose(-1, -2) * ratio) @ inputs
        carried = (queries * torch.exp(total)[..., None]) @ state.transpose(-1, -2)
        outputs.append(inside + carried)
        left = inputs * torch.exp(total[..., -1:] - total)[..., None]
        state = state * torch.exp(total[..., -1])[..., None, None] + left.transpose(-1, -2) @ keys
    return torch.cat(outputs, 1), state


def _distinct(x: Tensor) -> Tensor:
    """x without the repetitions of its expanded last dimensions, which broadcasting brings back.

    Mamba2 hands in gates of one value a head, expanded to Mamba's one value a channel and state.
    """
    for dimension in range(x.dim() - 2, x.dim()):
        if x.stride(dimension) == 0:
            x = x.narrow(dimension, 0, 1)
    return x


def _per_head(x: Tensor, heads: int) -> Tensor:
    """[..., groups, state_dim] -> [..., heads, state_dim]."""
    groups = x.shape[-2]
    return x if groups == heads else x.repeat_interleave(heads // groups, dim=-2)
