"""The gated delta rule (Gated DeltaNet, arXiv:2412.06464): linear attention with a decaying, corrected state.

Per value head, with state S [value_dim, key_dim], decay alpha_t = exp(g_t) and write strength beta_t:

    S_t = alpha_t S_{t-1} + beta_t (v_t - alpha_t S_{t-1} k_t) k_t^T
    o_t = S_t q_t / sqrt(key_dim)
    g_t = -exp(A_log) softplus(a_t + dt_bias),   beta_t = sigmoid(b_t)

where q and k are scaled to unit length and key head h serves value heads h * group ... (h + 1) * group - 1.
The pool `ssm_states` [slots, value_heads, value_dim, key_dim] holds each request's S.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

OPERATORS = (
    "chunk_gated_delta_rule_cpu",
    "fused_gdn_gating_cpu",
    "fused_sigmoid_gating_delta_rule_update_cpu",
)

CHUNK_TOKENS = 64


def fused_gdn_gating_cpu(
    A_log: Tensor,
    a: Tensor,
    b: Tensor,
    dt_bias: Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[Tensor, Tensor]:
    """g and beta [1, tokens, value_heads] in float32 from a, b [tokens, value_heads].

    `beta` and `threshold` are softplus's: (1/beta) log(1 + exp(beta x)), linear above the threshold.
    """
    decay = -torch.exp(A_log.float()) * functional.softplus(a.float() + dt_bias.float(), beta, threshold)
    return decay[None], torch.sigmoid(b.float())[None]


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    use_qk_l2norm_in_kernel: bool = True,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    is_kda: bool = False,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
    **unused: object,
) -> Tensor:
    """Token by token, for decode (one token each) and verify (the same number of drafts each).

    Each step is the same sequence of operations on the same shapes whatever the number of tokens, so that a
    verify pass has the bits of as many decode steps.

    Args:
        q, k: [1, tokens, key_heads, key_dim]; v: [1, tokens, value_heads, value_dim]; strides are free.
        a, b: [tokens, value_heads].
        initial_state_source: the pool, read at `initial_state_indices` [requests], and written there unless
            `disable_state_update`.
        intermediate_states_buffer: verify: [scratch rows, steps, value_heads, value_dim, key_dim] takes the
            state after each token, at rows `intermediate_state_indices`; the accepted one is copied back.
        retrieve_parent_token: verify of a tree: [requests, tokens] parents; a token continues its parent.

    Returns:
        [1, tokens, value_heads, value_dim] in q's dtype.

    Raises:
        NotImplementedError: key-wise decay (KDA), or requests with different numbers of tokens.
    """
    if is_kda:
        raise NotImplementedError("key-wise decay (KDA) is not available without a GPU")
    tokens, value_heads, value_dim = v.shape[1:]
    key_dim = q.shape[3]
    requests = cu_seqlens.shape[0] - 1
    if requests == 0 or tokens == 0:
        return v.new_empty(1, tokens, value_heads, value_dim, dtype=q.dtype)
    steps = tokens // requests
    if steps * requests != tokens:
        raise NotImplementedError("all requests of a verify need the same number of drafts")

    # Float64 gates: PyTorch's vector and scalar float32 exponentials differ in the last bit, and which one
    # a value meets depends on the size of the call. Contiguous inputs: a strided sum adds in another order.
    gate = functional.softplus(
        a.double().view(tokens, value_heads) + dt_bias.double(), softplus_beta, softplus_threshold
    )
    shape = (requests, steps, value_heads, 1, 1)
    decay = torch.exp(gate * -torch.exp(A_log.double())).float().view(shape)
    strength = torch.sigmoid(b.double()).float().view(shape[:-1])
    queries, keys, values = (x[0].contiguous().float() for x in (q, k, v))
    if use_qk_l2norm_in_kernel:
        queries, keys = _unit_length(queries), _unit_length(keys)
    queries = _per_value_head(queries * key_dim**-0.5, value_heads).view(
        requests, steps, value_heads, 1, key_dim
    )
    keys = _per_value_head(keys, value_heads).view(requests, steps, value_heads, 1, key_dim)
    values = values.view(requests, steps, value_heads, value_dim)

    slots = initial_state_indices[:requests].long()
    stored_dtype = initial_state_source.dtype
    state = initial_state_source[slots].float()
    history = None
    if intermediate_states_buffer is not None:
        rows = (
            intermediate_state_indices[:requests].long() if intermediate_state_indices is not None else slots
        )
        history = state.new_empty(steps, *state.shape)
    parents = None if retrieve_parent_token is None else retrieve_parent_token[:requests].long()
    each = torch.arange(requests)
    out = torch.empty(requests, steps, value_heads, value_dim)
    for step in range(steps):
        if step > 0 and parents is not None and history is not None:
            state = history[parents[:, step], each]
        key = keys[:, step]
        state = state * decay[:, step]
        error = (values[:, step] - (state * key).sum(-1)) * strength[:, step]
        state += error[..., None] * key
        torch.sum(state * queries[:, step], dim=-1, out=out[:, step])
        if stored_dtype != torch.float32:
            state = state.to(stored_dtype).float()
        if history is not None:
            history[step] = state
    if history is not None and intermediate_states_buffer is not None:
        intermediate_states_buffer[rows, :steps] = history.transpose(0, 1).to(
            intermediate_states_buffer.dtype
        )
    if not disable_state_update:
        initial_state_source[slots] = state.to(stored_dtype)
    return out.view(1, tokens, value_heads, value_dim).to(q.dtype)


def chunk_gated_delta_rule_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = True,
    **unused: object,
) -> tuple[Tensor, None, Tensor | None]:
    """Prefill, in chunks of CHUNK_TOKENS tokens.

    Args:
        q, k: [1, tokens, key_heads, key_dim]; v: [1, tokens, value_heads, value_dim].
        g, beta: [1, tokens, value_heads].
        initial_state: the pool, read and then written at `initial_state_indices` [requests].
        cu_seqlens: [requests + 1] where each request's tokens begin.

    Returns:
        Output [1, tokens, value_heads, value_dim] in q's dtype; None; and the states before each chunk
        [1, chunks of all requests, value_heads, value_dim, key_dim] in float32, None without tokens.
    """
    if initial_state is None or initial_state_indices is None or cu_seqlens is None:
        raise ValueError("chunk_gated_delta_rule_cpu needs the state pool, its indices and cu_seqlens")
    value_heads = v.shape[2]
    queries, keys, values = q[0].float(), k[0].float(), v[0].float()
    if use_qk_l2norm_in_kernel:
        queries, keys = _unit_length(queries), _unit_length(keys)
    queries = _per_value_head(queries * q.shape[3] ** -0.5, value_heads).transpose(0, 1)
    keys = _per_value_head(keys, value_heads).transpose(0, 1)
    values = values.transpose(0, 1)
    decays, strengths = g[0].float().transpose(0, 1), beta[0].float().transpose(0, 1)
    out = torch.empty(1, *v.shape[1:], dtype=q.dtype)
    before: list[Tensor] = []
    starts, slots = cu_seqlens.tolist(), initial_state_indices.tolist()
    for i in range(len(starts) - 1):
        span = slice(starts[i], starts[i + 1])
        if span.start == span.stop or slots[i] < 0:
            continue
        state = initial_state[slots[i]].float().transpose(-1, -2)
        o, state, states = gated_delta_chunks(
            queries[:, span], keys[:, span], values[:, span], decays[:, span], strengths[:, span], state
        )
        out[0, span] = o.transpose(0, 1).to(out.dtype)
        initial_state[slots[i]] = state.transpose(-1, -2).to(initial_state.dtype)
        before.append(states.transpose(-1, -2))
    return out, None, torch.cat(before)[None] if before else None


def gated_delta_chunks(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One sequence, chunk-parallel (the WY form of arXiv:2406.06484 with the decay of arXiv:2412.06464).

    In a chunk, with G the running sum of g, the corrections d_j = beta_j (v_j - alpha_j S_{j-1} k_j) solve
        (I + A) d = beta (v - e^G k S),    A_ij = beta_i e^(G_i - G_j) k_i.k_j for j < i,
    and then, C being the chunk's last token,
        o_i = e^(G_i) q_i S + sum_{j <= i} e^(G_i - G_j) (q_i.k_j) d_j
        S  <- e^(G_C) S + sum_j e^(G_C - G_j) k_j d_j^T.
    All but the step from chunk to chunk is done for all chunks at once.

    Args:
        q, k: [heads, tokens, key_dim]; v: [heads, tokens, value_dim]; g, beta: [heads, tokens]; all float32.
        state: [heads, key_dim, value_dim], the transpose of the pool's.

    Returns:
        Output [heads, tokens, value_dim], the state afterwards, and the states before each chunk
        [chunks, heads, key_dim, value_dim].
    """
    heads, tokens, _ = q.shape
    value_dim = v.shape[-1]
    size = min(CHUNK_TOKENS, tokens)
    padding = -tokens % size
    if padding:
        # Padded tokens write nothing (beta = 0) and don't decay (g = 0).
        q, k, v = (functional.pad(x, (0, 0, 0, padding)) for x in (q, k, v))
        g, beta = functional.pad(g, (0, padding)), functional.pad(beta, (0, padding))
    chunks = (tokens + padding) // size
    q, k, v = (x.reshape(heads, chunks, size, x.shape[-1]) for x in (q, k, v))
    beta = beta.reshape(heads, chunks, size, 1)
    total = g.reshape(heads, chunks, size).cumsum(-1)
    later = torch.ones(size, size, dtype=torch.bool).triu_(1)
    ratio = torch.exp((total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill_(later, -torch.inf))
    system = torch.tril(k @ k.transpose(-1, -2) * ratio * beta, -1)
    grown = torch.exp(total).unsqueeze(-1)
    # unitriangular: the solver takes the diagonal of I + A as ones
    solved = torch.linalg.solve_triangular(
        system, torch.cat([beta * v, beta * grown * k], -1), upper=False, unitriangular=True
    )
    from_values, from_state = solved[..., :value_dim], solved[..., value_dim:]
    attention = q @ k.transpose(-1, -2) * ratio
    q_grown = q * grown
    k_left = (k * torch.exp(total[..., -1:] - total).unsqueeze(-1)).transpose(-1, -2)
    chunk_decay = torch.exp(total[..., -1])[..., None, None]
    outputs, before = [], []
    for c in range(chunks):
        before.append(state)
        corrections = torch.baddbmm(from_values[:, c], from_state[:, c], state, alpha=-1)
        outputs.append(torch.baddbmm(q_grown[:, c] @ state, attention[:, c], corrections))
        state = torch.baddbmm(state * chunk_decay[:, c], k_left[:, c], corrections)
    out = torch.stack(outputs, 1).reshape(heads, chunks * size, value_dim)[:, :tokens]
    return out, state, torch.stack(before)


def _unit_length(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _per_value_head(x: Tensor, value_heads: int) -> Tensor:
    """[tokens, key_heads, dim] -> [tokens, value_heads, dim]."""
    heads = x.shape[-2]
    return x if heads == value_heads else x.repeat_interleave(value_heads // heads, dim=-2)
