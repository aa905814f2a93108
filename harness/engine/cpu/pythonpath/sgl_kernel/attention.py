"""Attention over SGLang's token pool: `decode_attention_cpu` and `extend_attention_cpu`.

For a query q at position p, keys k_j and values v_j of the positions j <= p that it may see,
    o = sum_j softmax_j(scale * q.k_j) v_j            (Vaswani et al., arXiv:1706.03762),
with grouped queries (arXiv:2305.13245): query head h reads key head h // (heads / kv_heads). Variants:
a logit cap c replaces the logit s by c * tanh(s / c) (Gemma 2, arXiv:2408.00118); a window w > 0 hides keys
with p - j >= w; a sink logit b_h per head adds exp(b_h) to the softmax's denominator (gpt-oss). Two disjoint
sets of keys are merged by their log-sum-exp (online softmax, arXiv:1805.02867).

Two rules shape the code.

*Slots*. A request's keys lie anywhere in the pool. Where they form one run, they are used as a view; only
otherwise are they gathered. This never selects another formula: both forms give the same bits.

*Repeatability*. A verify pass handles several positions of a request at once, decoding one. So that greedy
speculative decoding equals greedy decoding bit for bit, each row of a short extend is computed by the very
call a decode step makes for that position, up to EXACT_CONTEXT_TOKENS of context. Beyond, one pass over the
prefix serves all rows: equal up to the rounding of a float32 sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

OPERATORS = ("decode_attention_cpu", "extend_attention_cpu")

EXACT_ROWS = 16
EXACT_CONTEXT_TOKENS = 8192
MASKED_BLOCK_ROWS = 256

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_counting = torch.arange(4096, dtype=torch.int32)


def decode_attention_cpu(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """One new position per request: its key and value go into the pool, then it attends.

    Args:
        query, output: [requests, heads, head_dim].
        k_buffer, v_buffer: [slots, kv_heads, head_dim], any float dtype; values are multiplied by the scales
            where that dtype isn't the query's.
        key, value: [requests, kv_heads * head_dim] or None if they are in the pool already.
        loc: [requests] slots they are written to.
        attn_logits: scratch of the compiled kernel, unused.
        req_to_token: [rows, positions] slots; `req_pool_indices` [requests] names each request's row.
        seq_lens: [requests] positions to see, the new one included.
        sliding_window: keys a query may see, itself included; 0 for all.
        sinks: [heads] or None.

    Raises:
        NotImplementedError: cross-attention.
    """
    _refuse_cross_attention(is_cross_attn)
    if key is not None and value is not None:
        _store(k_buffer, key, loc)
        _store(v_buffer, value, loc)
    pool = _Pool(k_buffer, v_buffer, k_scale, v_scale, req_to_token, query.dtype)
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        first = max(0, length - sliding_window) if sliding_window > 0 else 0
        keys, values = pool.read(row, first, length)
        output[i] = _attend_one(query[i], keys, values, sm_scale, logit_cap, sinks)


def extend_attention_cpu(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    output: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int | None,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Several new positions per request: a prefill, a chunk of one, or a speculative verify.

    The keys and values of the new positions are taken from the arguments; the pool supplies the prefix only.
    (A pool that reuses slots, such as a ring, may have overwritten what the new positions wrote.)

    Args:
        query, output: [tokens, heads, head_dim], requests one after another.
        key, value: [tokens, kv_heads * head_dim] or [tokens, kv_heads, head_dim]; None where another layer
            has written them: then the pool supplies them as well.
        seq_lens: [requests] prefix and new positions together.
        extend_seq_lens, extend_start_loc: [requests] new positions, and where they begin in `query`.
        tree_mask: flat bool, per request [new, new] or [new, prefix + new]: which keys a row sees.
        is_causal: False lets each new position see all others (encoders).
        others: see `decode_attention_cpu`.

    Raises:
        NotImplementedError: cross-attention.
    """
    _refuse_cross_attention(is_cross_attn)
    lengths, counts = seq_lens.tolist(), extend_seq_lens.tolist()
    pool = _Pool(k_buffer, v_buffer, k_scale, v_scale, req_to_token, query.dtype)
    if key is not None and value is not None:
        key = key.view(-1, *k_buffer.shape[1:])
        value = value.view(-1, *v_buffer.shape[1:])
    masks = _tree_masks(tree_mask, lengths, counts)
    for i, (row, start) in enumerate(zip(req_pool_indices.tolist(), extend_start_loc.tolist(), strict=True)):
        length, new = lengths[i], counts[i]
        if new == 0:
            continue
        rows = slice(start, start + new)
        prefix = length - new
        own = (key[rows], value[rows]) if key is not None and value is not None else None
        if own is None:
            own = pool.read(row, prefix, length)
        q = query[rows]
        if masks is not None or not is_causal or logit_cap > 0 or sliding_window > 0:
            exact = masks is None and is_causal and new <= EXACT_ROWS
        else:
            exact = new <= EXACT_ROWS and length <= EXACT_CONTEXT_TOKENS
        if exact:
            first = max(0, prefix + 1 - sliding_window) if sliding_window > 0 else 0
            keys, values = pool.read_with_own(row, first, prefix, own)
            for j in range(new):
                end = prefix + j + 1
                low = max(0, end - sliding_window) if sliding_window > 0 else 0
                seen = slice(low - first, end - first)
                output[start + j] = _attend_one(q[j], keys[seen], values[seen], sm_scale, logit_cap, sinks)
        elif logit_cap > 0 or sliding_window > 0:
            mask = None if masks is None else masks[i]
            _attend_in_blocks(
                output[rows],
                q,
                pool,
                row,
                prefix,
                own,
                sm_scale,
                logit_cap,
                sliding_window,
                sinks,
                mask,
                is_causal,
            )
        else:
            out, lse = _attend_own(q, *own, sm_scale, is_causal, None if masks is None else masks[i])
            if prefix > 0:
                out, lse = _merge(out, lse, *_attend_all(q, *pool.read(row, 0, prefix), sm_scale))
            output[rows] = _apply_sinks(out, lse, sinks)


class _Pool:
    """Keys and values of one layer, read by request row and position."""

    __slots__ = ("dtype", "k_buffer", "k_scale", "req_to_token", "v_buffer", "v_scale")

    def __init__(
        self,
        k_buffer: Tensor,
        v_buffer: Tensor,
        k_scale: float,
        v_scale: float,
        req_to_token: Tensor,
        dtype: torch.dtype,
    ) -> None:
        self.k_buffer, self.v_buffer = k_buffer, v_buffer
        self.k_scale, self.v_scale = k_scale, v_scale
        self.req_to_token, self.dtype = req_to_token, dtype

    def read(self, row: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values [end - first, kv_heads, head_dim] of positions [first, end), viewed if possible."""
        slots = self.req_to_token[row, first:end]
        run = _as_run(slots)
        if run is not None:
            keys, values = self.k_buffer[run], self.v_buffer[run]
        else:
            keys, values = self.k_buffer.index_select(0, slots), self.v_buffer.index_select(0, slots)
        return self._in_query_dtype(keys, self.k_scale), self._in_query_dtype(values, self.v_scale)

    def read_with_own(
        self, row: int, first: int, prefix: int, own: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Positions [first, prefix) from the pool and `own` after them, as one sequence.

        Usually the new positions were just written behind the prefix: where the pool's values there are
        those of `own`, the whole is a view.
        """
        own_keys, own_values = own
        end = prefix + own_keys.shape[0]
        if self.k_buffer.dtype == self.dtype and end <= self.req_to_token.shape[1]:
            run = _as_run(self.req_to_token[row, first:end])
            if run is not None:
                keys, values = self.k_buffer[run], self.v_buffer[run]
                if torch.equal(keys[prefix - first :], own_keys) and torch.equal(
                    values[prefix - first :], own_values
                ):
                    return keys, values
        if prefix == first:
            return own_keys, own_values
        keys, values = self.read(row, first, prefix)
        return torch.cat([keys, own_keys]), torch.cat([values, own_values])

    def _in_query_dtype(self, stored: Tensor, scale: float) -> Tensor:
        if stored.dtype == self.dtype:
            return stored
        return stored.to(self.dtype) * scale


def _attend_one(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, logit_cap: float, sinks: Tensor | None
) -> Tensor:
    """[heads, head_dim] over all of `keys`: the one formula of decode steps and of exact verify rows."""
    if logit_cap > 0:
        out, lse = _attend_explicitly(query[None], keys, values, scale, logit_cap, None)
    else:
        out, lse = _attend_all(query[None], keys, values, scale)
    return _apply_sinks(out, lse, sinks)[0]


def _attend_all(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Every row sees every key.

    The queries that share a key head become rows of one flash call, so that keys are read once and never
    repeated in memory.

    Args:
        query: [rows, heads, head_dim]; keys, values: [n, kv_heads, head_dim].

    Returns:
        out [rows, heads, head_dim] and log-sum-exp [rows, heads] in float32.
    """
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    if rows == 1:
        folded = query.view(1, kv_heads, group, head_dim)
    else:
        folded = query.view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3)
        folded = folded.reshape(1, kv_heads, group * rows, head_dim)
    out, lse = _flash(
        folded, keys.transpose(0, 1)[None], values.transpose(0, 1)[None], 0.0, False, scale=scale
    )
    if rows == 1:
        return out.view(1, heads, values.shape[-1]), lse.reshape(1, heads)
    out = out.view(kv_heads, group, rows, values.shape[-1]).permute(2, 0, 1, 3)
    lse = lse.reshape(kv_heads, group, rows).permute(2, 0, 1)
    return out.reshape(rows, heads, -1), lse.reshape(rows, heads)


def _attend_own(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, is_causal: bool, tree: Tensor | None
) -> tuple[Tensor, Tensor]:
    """New positions among themselves: causal, by a tree's mask [rows, rows], or all to all."""
    if tree is not None:
        return _attend_explicitly(query, keys, values, scale, 0.0, tree[:, -keys.shape[0] :])
    if not is_causal:
        return _attend_all(query, keys, values, scale)
    group = query.shape[1] // keys.shape[1]
    q = query.transpose(0, 1)[None]
    k = keys.repeat_interleave(group, dim=1).transpose(0, 1)[None]
    v = values.repeat_interleave(group, dim=1).transpose(0, 1)[None]
    out, lse = _flash(q, k, v, 0.0, True, scale=scale)
    return out[0].transpose(0, 1), lse[0].transpose(0, 1)


def _attend_explicitly(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, logit_cap: float, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `_attend_all` with a logit cap and a mask [rows, n] of visible keys, in float32."""
    rows, heads, head_dim = query.shape
    n, kv_heads, value_dim = values.shape
    group = heads // kv_heads
    q = (
        query.float()
        .view(rows, kv_heads, group, head_dim)
        .permute(1, 2, 0, 3)
        .reshape(kv_heads, -1, head_dim)
    )
    logits = torch.bmm(q, keys.float().permute(1, 2, 0)).mul_(scale)
    if logit_cap > 0:
        logits = torch.tanh(logits / logit_cap).mul_(logit_cap)
    if mask is not None:
        logits.view(kv_heads, group, rows, n).masked_fill_(~mask, -torch.inf)
    lse = torch.logsumexp(logits, dim=-1)
    out = torch.bmm(torch.exp(logits - lse[..., None]), values.float().transpose(0, 1))
    out = out.view(kv_heads, group, rows, value_dim).permute(2, 0, 1, 3).reshape(rows, heads, value_dim)
    return out, lse.view(kv_heads, group, rows).permute(2, 0, 1).reshape(rows, heads)


def _attend_in_blocks(
    output: Tensor,
    query: Tensor,
    pool: _Pool,
    row: int,
    prefix: int,
    own: tuple[Tensor, Tensor],
    scale: float,
    logit_cap: float,
    sliding_window: int,
    sinks: Tensor | None,
    tree: Tensor | None,
    is_causal: bool,
) -> None:
    """Masked attention a few query rows at a time, so that the logits of a long prefill fit in memory."""
    new = query.shape[0]
    first = max(0, prefix + 1 - sliding_window) if sliding_window > 0 else 0
    keys, values = pool.read_with_own(row, first, prefix, own)
    for begin in range(0, new, MASKED_BLOCK_ROWS):
        end = min(begin + MASKED_BLOCK_ROWS, new)
        whole = tree is not None or not is_causal
        low = first if whole or sliding_window <= 0 else max(first, prefix + begin + 1 - sliding_window)
        high = prefix + (new if whole else end)
        position = torch.arange(low, high)[None]
        if tree is not None:
            own_tree = tree[begin:end, -new:]
            at = prefix + own_tree.sum(1, keepdim=True) - 1
            mask = torch.ones(end - begin, high - low, dtype=torch.bool)
            mask[:, prefix - low :] = own_tree
            position = position.clamp(max=prefix)
        else:
            at = torch.arange(prefix + begin, prefix + end)[:, None]
            mask = position <= at if is_causal else torch.ones(end - begin, high - low, dtype=torch.bool)
        if sliding_window > 0:
            mask &= position > at - sliding_window
        seen = slice(low - first, high - first)
        out, lse = _attend_explicitly(query[begin:end], keys[seen], values[seen], scale, logit_cap, mask)
        output[begin:end] = _apply_sinks(out, lse, sinks)


def _merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys, in float32."""
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a, weight_b = torch.exp(lse_a - lse)[..., None], torch.exp(lse_b - lse)[..., None]
    return out_a.float() * weight_a + out_b.float() * weight_b, lse


def _apply_sinks(out: Tensor, lse: Tensor, sinks: Tensor | None) -> Tensor:
    """exp(lse) / (exp(lse) + exp(sink)) of what the keys alone gave."""
    if sinks is None:
        return out
    return out * torch.sigmoid(lse - sinks.float())[..., None]


def _store(buffer: Tensor, new: Tensor, slots: Tensor) -> None:
    new = new.view(-1, *buffer.shape[1:])
    if new.shape[0] == 1:
        buffer[int(slots)] = new[0]
    elif new.shape[0]:
        buffer[slots] = new.to(buffer.dtype)


def _as_run(slots: Tensor) -> slice | None:
    """The slots as a slice if each follows its predecessor, else None."""
    n = slots.shape[0]
    if n == 0:
        return slice(0, 0)
    start = int(slots[0])
    if int(slots[-1]) - start != n - 1:
        return None
    if n > 2 and not torch.equal(slots - start, _count(n) if slots.dtype == torch.int32 else torch.arange(n)):
        return None
    return slice(start, start + n)


def _count(n: int) -> Tensor:
    global _counting  # noqa: PLW0603 - one growing table of 0, 1, 2, ...
    if _counting.shape[0] < n:
        _counting = torch.arange(2 * n, dtype=torch.int32)
    return _counting[:n]


def _tree_masks(tree_mask: Tensor | None, lengths: list[int], counts: list[int]) -> list[Tensor] | None:
    """The flat mask as one [new, new] or [new, prefix + new] view per request."""
    if tree_mask is None:
        return None
    flat = tree_mask.view(-1)
    widths = counts
    if flat.numel() >= sum(n * c for n, c in zip(lengths, counts, strict=True)):
        widths = lengths
    masks, start = [], 0
    for new, width in zip(counts, widths, strict=True):
        masks.append(flat[start : start + new * width].view(new, width))
        start += new * width
    return masks


def _refuse_cross_attention(is_cross_attn: bool) -> None:
    if is_cross_attn:
        raise NotImplementedError("cross-attention is not available without a GPU")
