"""The gated delta rule against float64 loops over tokens and heads."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.engine.cpu.pythonpath.sgl_kernel import delta_rule
from harness.engine.cpu.pythonpath.sgl_kernel.delta_rule import (
    fused_sigmoid_gating_delta_rule_update_cpu as update,
)
from harness.engine.cpu.pythonpath.sgl_kernel.mamba import chunk_gated_delta_rule_cpu


def reference(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """q, k [tokens, key_heads, K], v [tokens, heads, V], g, beta [tokens, heads], state [heads, V, K]:
    the outputs and the state after each token, by the definition."""
    tokens, heads, width = v.shape
    group = heads // q.shape[1]
    out = torch.zeros(tokens, heads, width, dtype=torch.float64)
    state, states = state.double().clone(), []
    for t in range(tokens):
        for h in range(heads):
            query, key = q[t, h // group].double(), k[t, h // group].double()
            query = query / math.sqrt(float(query @ query) + 1e-6) / math.sqrt(q.shape[2])
            key = key / math.sqrt(float(key @ key) + 1e-6)
            decayed = state[h] * math.exp(float(g[t, h]))
            error = v[t, h].double() - decayed @ key
            state[h] = decayed + float(beta[t, h]) * torch.outer(error, key)
            out[t, h] = state[h] @ query
        states.append(state.clone())
    return out, states


def draw(seed: int, tokens: int, key_heads: int, heads: int, key_dim: int, value_dim: int):
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(1, tokens, key_heads, key_dim, generator=g),
        torch.randn(1, tokens, key_heads, key_dim, generator=g),
        torch.randn(1, tokens, heads, value_dim, generator=g),
        torch.randn(tokens, heads, generator=g),
        torch.randn(tokens, heads, generator=g),
        torch.randn(heads, generator=g),
        torch.randn(heads, generator=g),
        torch.randn(9, heads, value_dim, key_dim, generator=g),
    )


def gates(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    decay = torch.empty(a.shape, dtype=torch.float64)
    for t in range(a.shape[0]):
        for h in range(a.shape[1]):
            step = math.log1p(math.exp(float(a[t, h]) + float(dt_bias[h])))
            decay[t, h] = -math.exp(float(a_log[h])) * step
    return decay, 1 / (1 + torch.exp(-b.double()))


shapes = st.sampled_from([(1, 1, 4, 4), (2, 4, 8, 6), (2, 2, 16, 16), (1, 3, 5, 7)])


@settings(max_examples=20)
@given(shape=shapes, seed=st.integers(0, 999))
def test_prefill(shape, seed) -> None:
    """Lengths around the chunk, several requests, states carried in and out."""
    key_heads, heads, key_dim, value_dim = shape
    lengths = random.Random(seed).sample([0, 1, 5, 63, 64, 65, 130], 3)
    q, k, v, a, b, a_log, dt_bias, pool = draw(seed, sum(lengths), key_heads, heads, key_dim, value_dim)
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    slots, before = torch.tensor([4, 0, 7]), pool.clone()
    decay, strength = delta_rule.fused_gdn_gating_cpu(a_log, a, b, dt_bias)
    exact_decay, exact_strength = gates(a, b, a_log, dt_bias)
    torch.testing.assert_close(decay[0].double(), exact_decay, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(strength[0].double(), exact_strength, atol=1e-6, rtol=1e-5)
    out, _, chunk_states = chunk_gated_delta_rule_cpu(q, k, v, decay, strength, pool, slots, starts)
    seen = []
    for i, slot in enumerate(slots.tolist()):
        part = slice(int(starts[i]), int(starts[i + 1]))
        expected, states = reference(
            q[0, part], k[0, part], v[0, part], exact_decay[part], exact_strength[part], before[slot]
        )
        torch.testing.assert_close(out[0, part].double(), expected, atol=1e-4, rtol=1e-3)
        if states:
            torch.testing.assert_close(pool[slot].double(), states[-1], atol=1e-4, rtol=1e-3)
            seen += [
                before[slot].double(),
                *states[delta_rule.CHUNK_TOKENS - 1 : -1 : delta_rule.CHUNK_TOKENS],
            ]
    assert chunk_states is not None
    torch.testing.assert_close(chunk_states[0].double(), torch.stack(seen), atol=1e-4, rtol=1e-3)
    untouched = [s for s in range(9) if s not in (4, 0, 7)]
    assert torch.equal(pool[untouched], before[untouched])


@settings(max_examples=20)
@given(shape=shapes, requests=st.integers(1, 3), seed=st.integers(0, 999))
def test_decode(shape, requests, seed) -> None:
    key_heads, heads, key_dim, value_dim = shape
    q, k, v, a, b, a_log, dt_bias, pool = draw(seed, requests, key_heads, heads, key_dim, value_dim)
    slots, before = torch.tensor([4, 0, 7])[:requests], pool.clone()
    out = update(a_log, dt_bias, q, k, v, a, b, pool, slots, torch.arange(requests + 1))
    decay, strength = gates(a, b, a_log, dt_bias)
    for i, slot in enumerate(slots.tolist()):
        part = slice(i, i + 1)
        expected, states = reference(
            q[0, part], k[0, part], v[0, part], decay[part], strength[part], before[slot]
        )
        torch.testing.assert_close(out[0, part].double(), expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(pool[slot].double(), states[-1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "key_dim"), [(3, 13), (4, 32)])
def test_verify_has_the_bits_of_decode_and_rolls_back(state_dtype, dtype, heads, key_dim) -> None:
    """The state kept after any number of accepted drafts is that of as many decode steps, bit for bit."""
    requests, drafts = 2, 7
    q, k, v, a, b, a_log, dt_bias, pool = draw(5, requests * drafts, heads, heads, key_dim, key_dim)
    q, k, v, a, b, pool = (
        q.to(dtype),
        k.to(dtype),
        v.to(dtype),
        a.to(dtype),
        b.to(dtype),
        pool.to(state_dtype),
    )
    slots, rows, before = torch.tensor([4, 7]), torch.tensor([2, 0]), pool.clone()
    stored = torch.zeros(3, drafts, *pool.shape[1:], dtype=state_dtype)
    out = update(
        a_log, dt_bias, q, k, v, a, b, pool, slots, torch.tensor([0, 7, 14]), disable_state_update=True,
        intermediate_states_buffer=stored, intermediate_state_indices=rows, cache_steps=drafts,
    )  # fmt: skip
    assert torch.equal(pool, before)
    out = out.view(requests, drafts, heads, key_dim)
    for t in range(drafts):
        at = torch.tensor([t, drafts + t])
        step = update(
            a_log,
            dt_bias,
            q[:, at],
            k[:, at],
            v[:, at],
            a[at],
            b[at],
            pool,
            slots,
            torch.arange(requests + 1),
        )
        assert torch.equal(step[0], out[:, t])
        assert torch.equal(stored[rows, t], pool[slots])


def test_verify_of_a_tree() -> None:
    parents = torch.tensor([[0, 0, 0, 1, 2, 2, 4], [0, 0, 1, 2, 3, 0, 5]])
    q, k, v, a, b, a_log, dt_bias, pool = draw(6, 14, 2, 4, 8, 6)
    stored = torch.zeros(2, 7, *pool.shape[1:])
    out = update(
        a_log, dt_bias, q, k, v, a, b, pool, torch.tensor([4, 7]), torch.tensor([0, 7, 14]),
        disable_state_update=True, intermediate_states_buffer=stored,
        intermediate_state_indices=torch.arange(2), cache_steps=7, retrieve_parent_token=parents,
    )  # fmt: skip
    decay, strength = gates(a, b, a_log, dt_bias)
    for i, slot in enumerate((4, 7)):
        for t in range(7):
            path = [t]
            while path[0] != 0:
                path.insert(0, int(parents[i, path[0]]))
            rows = [i * 7 + p for p in path]
            expected, states = reference(
                q[0, rows], k[0, rows], v[0, rows], decay[rows], strength[rows], pool[slot]
            )
            torch.testing.assert_close(out[0, rows[-1]].double(), expected[-1], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(stored[i, t].double(), states[-1], atol=1e-5, rtol=1e-4)


def test_strided_inputs_give_the_same_bits() -> None:
    """A verify hands in views of one tensor that holds q, k and v."""
    q, k, v, a, b, a_log, dt_bias, pool = draw(7, 3, 4, 4, 8, 8)
    packed = torch.cat([q.flatten(2), k.flatten(2), v.flatten(2)], -1)
    views = [part.unflatten(-1, (4, 8)) for part in packed.split([32, 32, 32], -1)]
    tail = (a, b), (torch.tensor([1, 2, 3]), torch.arange(4))
    expected = update(a_log, dt_bias, q, k, v, *tail[0], pool.clone(), *tail[1])
    assert torch.equal(update(a_log, dt_bias, *views, *tail[0], pool.clone(), *tail[1]), expected)


def test_idle_batches_do_nothing() -> None:
    q, k, v, a, b, a_log, dt_bias, pool = draw(8, 0, 2, 4, 8, 6)
    none, before = torch.empty(0, dtype=torch.int64), pool.clone()
    assert update(a_log, dt_bias, q, k, v, a, b, pool, none, torch.tensor([0])).shape == (1, 0, 4, 6)
    out, _, states = chunk_gated_delta_rule_cpu(q, k, v, a[None], b[None], pool, none, torch.tensor([0]))
    assert out.shape == (1, 0, 4, 6)
    assert states is None
    assert torch.equal(pool, before)


def test_what_is_not_there_is_refused() -> None:
    q, k, v, a, b, a_log, dt_bias, pool = draw(9, 3, 2, 4, 8, 6)
    slots = torch.tensor([0, 1])
    with pytest.raises(NotImplementedError, match="KDA"):
        update(a_log, dt_bias, q, k, v, a, b, pool, slots, torch.tensor([0, 1, 3]), is_kda=True)
    with pytest.raises(NotImplementedError, match="same number"):
        update(a_log, dt_bias, q, k, v, a, b, pool, slots, torch.tensor([0, 1, 3]))
