"""Attention kernels against float64 loops over positions."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.engine.cpu.pythonpath.sgl_kernel import attention


class Pool:
    """A KV pool whose requests' slots are one run each, or scattered all over."""

    def __init__(
        self,
        lengths: list[int],
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        scattered: bool = False,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        rows, width, slots = len(lengths) + 3, max(lengths) + 5, sum(lengths) + 40
        self.keys = torch.randn(slots, kv_heads, head_dim, generator=generator).to(dtype)
        self.values = torch.randn(slots, kv_heads, head_dim, generator=generator).to(dtype)
        self.rows = torch.randperm(rows, generator=generator)[: len(lengths)]
        self.table = torch.zeros(rows, width, dtype=torch.int32)
        order = torch.randperm(slots - 1, generator=generator) + 1 if scattered else torch.arange(7, slots)
        taken = 0
        for row, length in zip(self.rows.tolist(), lengths, strict=True):
            self.table[row, :length] = order[taken : taken + length].int()
            taken += length

    def of(self, request: int, end: int) -> tuple[Tensor, Tensor]:
        slots = self.table[self.rows[request], :end].long()
        return self.keys[slots], self.values[slots]


def reference(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: list[int],
    scale: float,
    logit_cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """One query row [heads, head_dim] over the keys numbered in `visible`, by the definition."""
    heads = query.shape[0]
    group = heads // keys.shape[1]
    out = torch.zeros(heads, values.shape[-1], dtype=torch.float64)
    for head in range(heads):
        logits = []
        for j in visible:
            logit = float(query[head].double() @ keys[j, head // group].double()) * scale
            logits.append(logit_cap * math.tanh(logit / logit_cap) if logit_cap > 0 else logit)
        weights = [math.exp(x) for x in logits]
        total = sum(weights) + (math.exp(float(sinks[head])) if sinks is not None else 0.0)
        for j, weight in zip(visible, weights, strict=True):
            out[head] += weight / total * values[j, head // group].double()
    return out


def decode(pool: Pool, query: Tensor, lengths: list[int], **options: object) -> Tensor:
    """The kernel with the last position's key and value passed as arguments, and wiped from the pool."""
    last = [int(pool.table[row, n - 1]) for row, n in zip(pool.rows.tolist(), lengths, strict=True)]
    loc = torch.tensor(last)
    key, value = pool.keys[loc].clone(), pool.values[loc].clone()
    pool.keys[loc], pool.values[loc] = 0, 0
    out = torch.full_like(query, float("nan"))
    attention.decode_attention_cpu(
        query, pool.keys, pool.values, 1.0, 1.0, out, key.flatten(1), value.flatten(1), loc, torch.empty(0),
        pool.table, pool.rows, torch.tensor(lengths), query.shape[-1] ** -0.5,
        options.get("logit_cap", 0.0), False, options.get("window", 0), None, options.get("sinks"),
    )  # fmt: skip
    assert torch.equal(pool.keys[loc], key) and torch.equal(pool.values[loc], value)
    return out


def extend(
    pool: Pool,
    query: Tensor,
    lengths: list[int],
    counts: list[int],
    own_in_pool: bool = True,
    tree_mask: Tensor | None = None,
    **options: object,
) -> Tensor:
    """The kernel; with own_in_pool=False the new positions' slots hold rubbish, as in a ring."""
    starts = [sum(counts[:i]) for i in range(len(counts))]
    own_slots = [
        int(pool.table[row, p])
        for row, n, c in zip(pool.rows.tolist(), lengths, counts, strict=True)
        for p in range(n - c, n)
    ]
    key, value = pool.keys[own_slots].clone(), pool.values[own_slots].clone()
    keys, values = pool.keys.clone(), pool.values.clone()
    if not own_in_pool:
        keys[own_slots], values[own_slots] = float("nan"), float("nan")
    out = torch.full_like(query, float("nan"))
    attention.extend_attention_cpu(
        query, key, value, out, keys, values, 1.0, 1.0, pool.table, pool.rows, torch.tensor(lengths),
        torch.tensor(counts, dtype=torch.int32), torch.tensor(starts, dtype=torch.int32), max(counts),
        query.shape[-1] ** -0.5, options.get("logit_cap", 0.0), False, options.get("window", 0), None,
        options.get("sinks"), tree_mask, options.get("causal", True),
    )  # fmt: skip
    return out


shapes = st.tuples(
    st.integers(1, 3), st.sampled_from([(1, 1), (4, 2), (6, 2), (8, 1)]), st.sampled_from([16, 32, 64])
)


@settings(max_examples=40)
@given(
    shape=shapes,
    scattered=st.booleans(),
    logit_cap=st.sampled_from([0.0, 3.0]),
    window=st.sampled_from([0, 1, 9, 500]),
    with_sinks=st.booleans(),
    seed=st.integers(0, 999),
)
def test_decode(shape, scattered, logit_cap, window, with_sinks, seed) -> None:
    requests, (heads, kv_heads), head_dim = shape
    rng = random.Random(seed)
    lengths = [rng.randint(1, 70) for _ in range(requests)]
    pool = Pool(lengths, kv_heads, head_dim, scattered=scattered, seed=seed)
    query = torch.randn(requests, heads, head_dim, generator=torch.Generator().manual_seed(seed + 1))
    sinks = torch.linspace(-1, 2, heads) if with_sinks else None
    out = decode(pool, query, lengths, logit_cap=logit_cap, window=window, sinks=sinks)
    for i, n in enumerate(lengths):
        keys, values = pool.of(i, n)
        visible = list(range(max(0, n - window) if window else 0, n))
        expected = reference(query[i], keys, values, visible, head_dim**-0.5, logit_cap, sinks)
        torch.testing.assert_close(out[i].double(), expected, atol=2e-5, rtol=2e-5)


@settings(max_examples=60)
@given(
    shape=shapes,
    scattered=st.booleans(),
    own_in_pool=st.booleans(),
    logit_cap=st.sampled_from([0.0, 3.0]),
    window=st.sampled_from([0, 1, 9, 500]),
    with_sinks=st.booleans(),
    causal=st.booleans(),
    longest=st.sampled_from([6, 40]),
    seed=st.integers(0, 999),
)
def test_extend(shape, scattered, own_in_pool, logit_cap, window, with_sinks, causal, longest, seed) -> None:
    """Chunks with and without a prefix, from the first token on; EXACT_ROWS lies between both lengths."""
    requests, (heads, kv_heads), head_dim = shape
    rng = random.Random(seed)
    counts = [rng.randint(0 if i else 1, longest) for i in range(requests)]
    lengths = [c + rng.choice([0, rng.randint(1, 50)]) for c in counts]
    pool = Pool([max(n, 1) for n in lengths], kv_heads, head_dim, scattered=scattered, seed=seed)
    query = torch.randn(sum(counts), heads, head_dim, generator=torch.Generator().manual_seed(seed + 1))
    sinks = torch.linspace(-1, 2, heads) if with_sinks else None
    out = extend(
        pool,
        query,
        lengths,
        counts,
        own_in_pool,
        logit_cap=logit_cap,
        window=window,
        sinks=sinks,
        causal=causal,
    )
    row = 0
    for i, (n, c) in enumerate(zip(lengths, counts, strict=True)):
        keys, values = pool.of(i, n)
        for p in range(n - c, n):
            visible = [j for j in range(n) if (not causal or j <= p) and (window == 0 or j > p - window)]
            expected = reference(query[row], keys, values, visible, head_dim**-0.5, logit_cap, sinks)
            torch.testing.assert_close(out[row].double(), expected, atol=3e-5, rtol=3e-5)
            row += 1


@settings(max_examples=30)
@given(
    with_prefix_columns=st.booleans(),
    own_in_pool=st.booleans(),
    logit_cap=st.sampled_from([0.0, 3.0]),
    window=st.sampled_from([0, 20]),
    seed=st.integers(0, 999),
)
def test_extend_of_a_tree(with_prefix_columns, own_in_pool, logit_cap, window, seed) -> None:
    rng = random.Random(seed)
    requests, heads, kv_heads, head_dim, nodes = 2, 4, 2, 32, rng.choice([3, 8, 20])
    prefixes = [rng.randint(1, 60) for _ in range(requests)]
    lengths = [p + nodes for p in prefixes]
    pool = Pool(lengths, kv_heads, head_dim, scattered=rng.random() < 0.5, seed=seed)
    query = torch.randn(requests * nodes, heads, head_dim, generator=torch.Generator().manual_seed(seed))
    trees, masks = [], []
    for prefix in prefixes:
        parents = [0] + [rng.randrange(i) for i in range(1, nodes)]
        ancestors = [{0}]
        for node in range(1, nodes):
            ancestors.append(ancestors[parents[node]] | {node})
        trees.append(ancestors)
        mask = torch.zeros(nodes, nodes, dtype=torch.bool)
        for node, seen in enumerate(ancestors):
            mask[node, sorted(seen)] = True
        if with_prefix_columns:
            mask = torch.cat([torch.ones(nodes, prefix, dtype=torch.bool), mask], 1)
        masks.append(mask.flatten())
    out = extend(
        pool,
        query,
        lengths,
        [nodes] * requests,
        own_in_pool,
        torch.cat(masks),
        logit_cap=logit_cap,
        window=window,
    )
    for i, prefix in enumerate(prefixes):
        keys, values = pool.of(i, prefix + nodes)
        for node in range(nodes):
            at = prefix + len(trees[i][node]) - 1
            visible = [j for j in range(prefix) if window == 0 or j > at - window]
            visible += [prefix + a for a in sorted(trees[i][node])]
            row = i * nodes + node
            expected = reference(query[row], keys, values, visible, head_dim**-0.5, logit_cap)
            torch.testing.assert_close(out[row].double(), expected, atol=3e-5, rtol=3e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prefix", [1, 500, 1023, 4090])
@pytest.mark.parametrize("window", [0, 100])
def test_verify_has_the_bits_of_decode(dtype, prefix, window) -> None:
    """Seven rows at once, or one after another: the same bits, so greedy choices can't differ."""
    drafts, heads, kv_heads, head_dim = 7, 4, 2, 32
    pool = Pool([prefix + drafts], kv_heads, head_dim, dtype)
    query = torch.randn(drafts, heads, head_dim).to(dtype)
    together = extend(pool, query, [prefix + drafts], [drafts], window=window)
    for j in range(drafts):
        alone = decode(pool, query[j : j + 1], [prefix + j + 1], window=window)
        assert torch.equal(together[j], alone[0])


@pytest.mark.parametrize("prefix", [60, 9000])
def test_where_slots_lie_does_not_change_bits(prefix) -> None:
    """A fragmented pool, or one whose own slots were overwritten, gives what one run of slots gives."""
    drafts, heads, kv_heads, head_dim = 7, 4, 2, 32
    length = prefix + drafts
    run = Pool([length], kv_heads, head_dim, torch.bfloat16, seed=3)
    scattered = Pool([length], kv_heads, head_dim, torch.bfloat16, scattered=True, seed=4)
    for mine, theirs in ((scattered.keys, run.keys), (scattered.values, run.values)):
        mine[scattered.table[scattered.rows[0], :length].long()] = theirs[
            run.table[run.rows[0], :length].long()
        ]
    query = torch.randn(drafts, heads, head_dim).to(torch.bfloat16)
    expected = extend(run, query, [length], [drafts])
    assert torch.equal(extend(scattered, query, [length], [drafts]), expected)
    assert torch.equal(extend(run, query, [length], [drafts], own_in_pool=False), expected)
    assert torch.equal(decode(scattered, query[-1:], [length]), decode(run, query[-1:], [length]))


def test_long_context_rows_agree_with_decode() -> None:
    """Beyond the exact range the prefix is shared; the results agree to rounding."""
    drafts, prefix, heads, kv_heads, head_dim = 7, attention.EXACT_CONTEXT_TOKENS + 100, 4, 2, 32
    pool = Pool([prefix + drafts], kv_heads, head_dim)
    query = torch.randn(drafts, heads, head_dim)
    together = extend(pool, query, [prefix + drafts], [drafts])
    alone = torch.cat([decode(pool, query[j : j + 1], [prefix + j + 1]) for j in range(drafts)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-5)


def test_float8_pool_is_scaled() -> None:
    pool = Pool([30], 2, 32, torch.float32)
    narrow_keys = (pool.keys / 0.5).to(torch.float8_e4m3fn)
    narrow_values = (pool.values / 2.0).to(torch.float8_e4m3fn)
    pool.keys, pool.values = narrow_keys.float() * 0.5, narrow_values.float() * 2.0
    query = torch.randn(1, 4, 32)
    out = torch.empty_like(query)
    attention.decode_attention_cpu(
        query, narrow_keys, narrow_values, 0.5, 2.0, out, None, None, torch.empty(0), torch.empty(0),
        pool.table, pool.rows, torch.tensor([30]), 32**-0.5, 0.0, False, 0, None, None,
    )  # fmt: skip
    expected = reference(query[0], *pool.of(0, 30), list(range(30)), 32**-0.5)
    torch.testing.assert_close(out[0].double(), expected, atol=2e-5, rtol=2e-5)


def test_idle_batches_do_nothing() -> None:
    pool = Pool([4], 2, 16)
    before = pool.keys.clone()
    pool.rows = pool.rows[:0]
    nothing = torch.empty(0, 4, 16)
    none = torch.empty(0, dtype=torch.int64)
    attention.decode_attention_cpu(
        nothing, pool.keys, pool.values, 1.0, 1.0, nothing, torch.empty(0, 32), torch.empty(0, 32), none,
        torch.empty(0), pool.table, none, none, 0.25, 0.0, False, 0, None, None,
    )  # fmt: skip
    attention.extend_attention_cpu(
        nothing, torch.empty(0, 32), torch.empty(0, 32), nothing, pool.keys, pool.values, 1.0, 1.0,
        pool.table, none, none, none, none, None, 0.25, 0.0, False, 0, None, None, None, True,
    )  # fmt: skip
    assert torch.equal(pool.keys, before)


def test_cross_attention_is_refused() -> None:
    pool = Pool([4], 2, 16)
    with pytest.raises(NotImplementedError, match="cross-attention"):
        attention.decode_attention_cpu(
            torch.empty(1, 4, 16), pool.keys, pool.values, 1.0, 1.0, torch.empty(1, 4, 16), None, None,
            torch.empty(0), torch.empty(0), pool.table, pool.rows, torch.tensor([4]), 0.25, 0.0, True, 0,
            None, None,
        )  # fmt: skip
