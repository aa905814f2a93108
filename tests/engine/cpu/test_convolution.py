"""The short convolution against loops over tokens, channels and taps."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.engine.cpu.pythonpath.sgl_kernel import convolution
from harness.engine.cpu.pythonpath.sgl_kernel.mamba import causal_conv1d_fn_cpu, causal_conv1d_update_cpu


def reference(
    past: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """past [channels, width - 1], x [channels, tokens] -> y, the new past; in float64."""
    kept = weight.shape[1] - 1
    inputs = torch.cat([past.double(), x.double()], 1)
    y = torch.zeros(x.shape, dtype=torch.float64)
    for channel in range(x.shape[0]):
        for t in range(x.shape[1]):
            total = float(bias[channel]) if bias is not None else 0.0
            for j in range(kept + 1):
                total += float(weight[channel, j]) * float(inputs[channel, t + j])
            y[channel, t] = total
    return (y * torch.sigmoid(y) if silu else y), inputs[:, -kept:]


def setup(seed: int, channels: int, width: int, with_bias: bool, slots: int = 9):
    g = torch.Generator().manual_seed(seed)
    weight = torch.randn(channels, width, generator=g)
    bias = torch.randn(channels, generator=g) if with_bias else None
    return g, weight, bias, torch.randn(slots, channels, width - 1, generator=g)


@settings(max_examples=30)
@given(
    channels=st.sampled_from([1, 5, 12]), width=st.sampled_from([2, 4]), with_bias=st.booleans(),
    silu=st.booleans(), seed=st.integers(0, 999),
)  # fmt: skip
def test_prefill(channels, width, with_bias, silu, seed) -> None:
    g, weight, bias, states = setup(seed, channels, width, with_bias)
    rng = random.Random(seed)
    lengths = [rng.choice([0, 1, 2, 11]) for _ in range(3)]
    continued = [rng.random() < 0.5 for _ in lengths]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    x = torch.randn(channels, sum(lengths), generator=g)
    slots, before = torch.tensor([4, 0, 7]), states.clone()
    y = causal_conv1d_fn_cpu(
        x, weight, bias, "silu" if silu else None, states, torch.tensor(continued), slots, starts, lengths
    )
    for i, slot in enumerate(slots.tolist()):
        part = slice(int(starts[i]), int(starts[i + 1]))
        past = before[slot] if continued[i] else torch.zeros_like(before[slot])
        expected, after = reference(past, x[:, part], weight, bias, silu)
        torch.testing.assert_close(y[:, part].double(), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(states[slot].double(), after if lengths[i] else before[slot].double())
    untouched = [s for s in range(9) if s not in (4, 0, 7)]
    assert torch.equal(states[untouched], before[untouched])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decode_steps_equal_a_prefill(dtype) -> None:
    g, weight, bias, states = setup(1, 12, 4, True)
    states, weight, bias = states.to(dtype), weight.to(dtype), bias.to(dtype)
    x = torch.randn(2, 12, 6, generator=g).to(dtype)
    slots, mine = torch.tensor([3, 5]), states.clone()
    steps = [
        causal_conv1d_update_cpu(x[..., t], mine, weight, bias, "silu", conv_state_indices=slots)
        for t in range(6)
    ]
    flat = torch.cat([x[0], x[1]], 1)
    y = causal_conv1d_fn_cpu(
        flat,
        weight,
        bias,
        "silu",
        states,
        torch.tensor([True, True]),
        slots,
        torch.tensor([0, 6, 12]),
        [6, 6],
    )
    torch.testing.assert_close(
        torch.stack(steps, -1), torch.stack([y[:, :6], y[:, 6:]]), atol=1e-2, rtol=1e-2
    )
    assert torch.equal(mine, states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pool_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [13, 64])
def test_verify_has_the_bits_of_decode_and_rolls_back(dtype, pool_dtype, channels) -> None:
    """Whatever number of drafts is kept, the stored window is the state of as many decode steps."""
    g, weight, bias, states = setup(2, channels, 4, True)
    states, weight = states.to(pool_dtype), weight.to(dtype)
    x = torch.randn(2, channels, 7, generator=g).to(dtype)
    slots, rows, before = torch.tensor([3, 5]), torch.tensor([1, 0]), states.clone()
    windows = torch.zeros(4, 7, channels, 3, dtype=pool_dtype)
    y = causal_conv1d_update_cpu(
        x, states, weight, bias, "silu", conv_state_indices=slots, intermediate_conv_window=windows,
        intermediate_state_indices=rows,
    )  # fmt: skip
    assert torch.equal(states, before)
    assert y.transpose(1, 2).is_contiguous()
    for t in range(7):
        step = causal_conv1d_update_cpu(x[..., t], states, weight, bias, "silu", conv_state_indices=slots)
        assert torch.equal(step, y[..., t])
        assert torch.equal(windows[rows, t], states[slots])


@settings(max_examples=30)
@given(tokens=st.integers(1, 9), width=st.sampled_from([2, 4]), seed=st.integers(0, 999))
def test_verify_of_a_tree(tokens, width, seed) -> None:
    """A token's past is its ancestors, then the carried state; links as SGLang writes them."""
    g, weight, bias, states = setup(seed, 5, width, True)
    rng = random.Random(seed)
    requests = 2
    x = torch.randn(requests, 5, tokens, generator=g)
    child = torch.full((requests, tokens), -1)
    sibling, parents_out = torch.full_like(child, -1), torch.full_like(child, -9)
    all_parents = []
    for i in range(requests):
        parents = [0] + [rng.randrange(t) for t in range(1, tokens)]
        for t in range(tokens - 1, 0, -1):
            sibling[i, t], child[i, parents[t]] = child[i, parents[t]].clone(), t
        all_parents.append(parents)
    windows = torch.zeros(requests, tokens, 5, width - 1)
    y = causal_conv1d_update_cpu(
        x, states, weight, bias, "silu", conv_state_indices=torch.tensor([8, 2]),
        intermediate_conv_window=windows, intermediate_state_indices=torch.arange(requests),
        retrieve_next_token=child, retrieve_next_sibling=sibling, retrieve_parent_token=parents_out,
    )  # fmt: skip
    for i, slot in enumerate((8, 2)):
        assert parents_out[i].tolist() == all_parents[i]
        for t in range(tokens):
            path = [t]
            while path[0] != 0:
                path.insert(0, all_parents[i][path[0]])
            expected, after = reference(states[slot], x[i][:, path], weight, bias, True)
            torch.testing.assert_close(y[i, :, t].double(), expected[:, -1], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(windows[i, t].double(), after)


def test_idle_batches_do_nothing() -> None:
    _, weight, bias, states = setup(0, 5, 4, True)
    none, before = torch.empty(0, dtype=torch.int64), states.clone()
    y = causal_conv1d_fn_cpu(
        torch.empty(5, 0), weight, bias, "silu", states, none.bool(), none, torch.tensor([0]), []
    )
    assert y.shape == (5, 0)
    assert causal_conv1d_update_cpu(
        torch.empty(0, 5), states, weight, bias, conv_state_indices=none
    ).shape == (0, 5)
    assert torch.equal(states, before)
    assert convolution.parents_from_links(torch.empty(0, 3).long(), torch.empty(0, 3).long()).shape == (0, 3)
