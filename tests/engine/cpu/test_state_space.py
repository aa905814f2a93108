"""Mamba2's state space against float64 loops over tokens and heads, and against SGLang's own kernels."""

from __future__ import annotations

import contextlib
import math
import os
import random
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.engine.cpu.state_space import scan_prompts, update_states


class Drawn(NamedTuple):
    """x [tokens, heads, head_dim]; dt [tokens, heads]; B, C [tokens, groups, state]; A, D, bias [heads]; pool
    [9, heads, head_dim, state]."""

    x: Tensor
    dt: Tensor
    B: Tensor
    C: Tensor
    A: Tensor
    D: Tensor
    bias: Tensor
    pool: Tensor


def draw(seed: int, tokens: int, groups: int, heads: int, head_dim: int, state: int) -> Drawn:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return Drawn(
        normal(tokens, heads, head_dim), normal(tokens, heads), normal(tokens, groups, state),
        normal(tokens, groups, state), -torch.exp(normal(heads)), normal(heads), normal(heads),
        normal(9, heads, head_dim, state),
    )  # fmt: skip


def reference(drawn: Drawn, rows: list[int], state: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The outputs of the tokens `rows`, one after another, and the state after each, by the definition."""
    heads = drawn.x.shape[1]
    group = heads // drawn.B.shape[1]
    out, states, state = [], [], state.double().clone()
    for row in rows:
        y = torch.empty(drawn.x.shape[1:], dtype=torch.float64)
        for h in range(heads):
            delta = math.log1p(math.exp(float(drawn.dt[row, h]) + float(drawn.bias[h])))
            x, b = drawn.x[row, h].double(), drawn.B[row, h // group].double()
            state[h] = math.exp(delta * float(drawn.A[h])) * state[h] + delta * torch.outer(x, b)
            y[h] = state[h] @ drawn.C[row, h // group].double() + float(drawn.D[h]) * x
        out.append(y)
        states.append(state.clone())
    return torch.stack(out) if out else torch.empty(0, *drawn.x.shape[1:]), states


def update(drawn: Drawn, pool: Tensor, slots: Tensor, shape: tuple[int, ...], **options) -> Tensor:
    """Call the kernel as the mixer does: gates expanded; `shape` is (requests,) or (requests, tokens)."""
    heads, head_dim, state = pool.shape[1:]
    out = torch.full((*shape, heads, head_dim), torch.nan, dtype=drawn.x.dtype)
    update_states(
        pool,
        drawn.x.view(*shape, heads, head_dim),
        drawn.dt[:, :, None].expand(-1, -1, head_dim).view(*shape, heads, head_dim),
        drawn.A[:, None, None].expand(-1, head_dim, state),
        drawn.B.view(*shape, *drawn.B.shape[1:]),
        drawn.C.view(*shape, *drawn.C.shape[1:]),
        drawn.D[:, None].expand(-1, head_dim),
        dt_bias=drawn.bias[:, None].expand(-1, head_dim),
        dt_softplus=True,
        state_batch_indices=slots,
        out=out,
        **options,
    )
    return out


def scan(drawn: Drawn, starts: Tensor, initial: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    out = torch.full((1, *drawn.x.shape), torch.nan, dtype=drawn.x.dtype)
    _, states, _ = scan_prompts(
        drawn.x[None], drawn.dt[None], drawn.A, drawn.B[None], drawn.C[None], chunk, D=drawn.D,
        dt_bias=drawn.bias, initial_states=initial, cu_seqlens=starts, dt_softplus=True, out=out,
        state_dtype=torch.float32,
    )  # fmt: skip
    return out[0], states


shapes = st.sampled_from([(1, 1, 4, 4), (2, 4, 8, 6), (2, 2, 16, 16), (1, 3, 5, 7)])


@settings(max_examples=20)
@given(shape=shapes, chunk=st.sampled_from([16, 64]), continued=st.booleans(), seed=st.integers(0, 999))
def test_prefill(shape, chunk, continued, seed) -> None:
    """Lengths around the chunk, several requests, states carried in and out."""
    lengths = random.Random(seed).sample([0, 1, 5, 15, 16, 17, 64, 130], 3)
    drawn = draw(seed, sum(lengths), *shape)
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    initial = drawn.pool[:3] if continued else None
    out, states = scan(drawn, starts, initial, chunk)
    for i in range(3):
        rows = list(range(int(starts[i]), int(starts[i + 1])))
        before = drawn.pool[i] if continued else torch.zeros_like(drawn.pool[i])
        expected, after = reference(drawn, rows, before)
        torch.testing.assert_close(out[rows].double(), expected.double(), atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(states[i].double(), [before.double(), *after][-1], atol=1e-4, rtol=1e-3)


@settings(max_examples=20)
@given(shape=shapes, requests=st.integers(1, 3), seed=st.integers(0, 999))
def test_decode(shape, requests, seed) -> None:
    drawn = draw(seed, requests, *shape)
    pool, slots = drawn.pool.clone(), torch.tensor([4, 0, 7])[:requests]
    out = update(drawn, pool, slots, (requests,))
    for i, slot in enumerate(slots.tolist()):
        expected, states = reference(drawn, [i], drawn.pool[slot])
        torch.testing.assert_close(out[i].double(), expected[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(pool[slot].double(), states[0], atol=1e-5, rtol=1e-4)
    untouched = [slot for slot in range(9) if slot not in slots.tolist()]
    assert torch.equal(pool[untouched], drawn.pool[untouched])


def test_gates_of_every_channel_and_state() -> None:
    """Mamba's own form: A has a value for each channel and state, and delta one for each channel."""
    generator = torch.Generator().manual_seed(3)
    heads, head_dim, state = 2, 3, 4
    x, dt, bias = (torch.randn(heads, head_dim, generator=generator) for _ in range(3))
    A, before = (torch.randn(heads, head_dim, state, generator=generator) for _ in range(2))
    B, C = (torch.randn(heads, state, generator=generator) for _ in range(2))
    pool, out = before[None].clone(), torch.empty(1, heads, head_dim)
    update_states(pool, x[None], dt[None], A, B[None], C[None], dt_bias=bias, dt_softplus=True, out=out)
    delta = torch.nn.functional.softplus((dt + bias).double())
    after = torch.exp(delta[..., None] * A) * before + (delta * x)[..., None] * B[:, None]
    torch.testing.assert_close(pool[0].double(), after, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(out[0].double(), (after * C[:, None]).sum(-1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "state"), [(3, 13), (4, 32)])
def test_verify_has_the_bits_of_decode_and_rolls_back(state_dtype, dtype, heads, state) -> None:
    """The state kept after any number of accepted drafts is that of as many decode steps, bit for bit."""
    requests, drafts = 2, 7
    drawn = draw(5, requests * drafts, 1, heads, 8, state)
    drawn = drawn._replace(**{name: getattr(drawn, name).to(dtype) for name in ("x", "dt", "B", "C")})
    pool = drawn.pool.to(state_dtype)
    slots, rows, before = torch.tensor([4, 7]), torch.tensor([2, 0]), pool.clone()
    stored = torch.zeros(3, drafts, *pool.shape[1:], dtype=state_dtype)
    out = update(
        drawn, pool, slots, (requests, drafts), disable_state_update=True, cache_steps=drafts,
        intermediate_states_buffer=stored, intermediate_state_indices=rows,
    )  # fmt: skip
    assert torch.equal(pool, before)
    for t in range(drafts):
        at = torch.tensor([t, drafts + t])
        one = drawn._replace(**{name: getattr(drawn, name)[at] for name in ("x", "dt", "B", "C")})
        assert torch.equal(update(one, pool, slots, (requests,)), out[:, t])
        assert torch.equal(stored[rows, t], pool[slots])


def test_verify_of_a_tree() -> None:
    parents = torch.tensor([[0, 0, 0, 1, 2, 2, 4], [0, 0, 1, 2, 3, 0, 5]])
    drawn = draw(6, 14, 2, 4, 8, 6)
    stored = torch.zeros(2, 7, *drawn.pool.shape[1:])
    out = update(
        drawn, drawn.pool.clone(), torch.tensor([4, 7]), (2, 7), disable_state_update=True, cache_steps=7,
        intermediate_states_buffer=stored, intermediate_state_indices=torch.arange(2),
        retrieve_parent_token=parents,
    )  # fmt: skip
    for i, slot in enumerate((4, 7)):
        for t in range(7):
            path = [t]
            while path[0] != 0:
                path.insert(0, int(parents[i, path[0]]))
            expected, states = reference(drawn, [i * 7 + p for p in path], drawn.pool[slot])
            torch.testing.assert_close(out[i, t].double(), expected[-1], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(stored[i, t].double(), states[-1], atol=1e-5, rtol=1e-4)


def test_idle_batches_do_nothing() -> None:
    drawn = draw(8, 0, 2, 4, 8, 6)
    pool = drawn.pool.clone()
    assert update(drawn, pool, torch.empty(0, dtype=torch.int64), (0,)).shape == (0, 4, 8)
    assert torch.equal(pool, drawn.pool)


def test_what_is_not_there_is_refused() -> None:
    drawn = draw(9, 3, 2, 4, 8, 6)
    with pytest.raises(NotImplementedError, match="no gate"):
        update(drawn, drawn.pool, torch.arange(3), (3,), z=drawn.x)
    with pytest.raises(NotImplementedError, match="snapshots"):
        scan_prompts(
            drawn.x[None], drawn.dt[None], drawn.A, drawn.B[None], drawn.C[None], 16,
            cu_seqlens=torch.tensor([0, 3]), out=drawn.x[None], track_seq_idx=torch.tensor([0]),
        )  # fmt: skip


def against_sglang() -> None:
    """Runs in a process whose Triton is interpreted: both ways on the same inputs must agree."""
    from sglang.kernels.ops.mamba.triton_ops.mamba_ssm import selective_state_update
    from sglang.kernels.ops.mamba.triton_ops.ssd_combined import mamba_chunk_scan_combined
    from triton.runtime.autotuner import Autotuner

    Autotuner._bench = lambda self, *args, **options: 1.0  # nothing to time: the first configuration will do
    torch.cpu.device = lambda index: contextlib.nullcontext()  # the launches' `with device`, for GPUs alone
    for continued in (False, True):
        drawn = draw(1, 41, 2, 4, 16, 16)
        starts = torch.tensor([0, 5, 41], dtype=torch.int32)
        initial = drawn.pool[:2] if continued else None
        mine, my_states = scan(drawn, starts, initial, 16)
        theirs = torch.zeros(1, *drawn.x.shape)
        logical = {}
        if continued:
            # pieces that cross neither a chunk of 16 nor a request: 0-5, 5-16, 16-32, 32-41
            logical = {
                "chunk_indices": torch.tensor([0, 0, 1, 2]),
                "chunk_offsets": torch.tensor([0, 5, 0, 0]),
            }
        their_states = mamba_chunk_scan_combined(
            drawn.x[None], drawn.dt[None], drawn.A, drawn.B[None], drawn.C[None], 16, D=drawn.D,
            dt_bias=drawn.bias, initial_states=initial, cu_seqlens=starts, dt_softplus=True, out=theirs,
            seq_idx=torch.tensor([[0] * 5 + [1] * 36], dtype=torch.int32), state_dtype=torch.float32,
            return_varlen_states=True, **logical,
        )  # fmt: skip
        torch.testing.assert_close(mine, theirs[0], atol=1e-3, rtol=1e-2)
        torch.testing.assert_close(my_states, their_states, atol=1e-3, rtol=1e-2)

    drawn = draw(2, 6, 2, 4, 16, 16)
    slots = torch.tensor([4, 7], dtype=torch.int32)
    stored = [torch.zeros(2, 3, *drawn.pool.shape[1:]) for _ in range(2)]
    outs = [torch.zeros(2, 3, 4, 16) for _ in range(2)]
    for kernel, out, buffer in zip((update_states, selective_state_update), outs, stored, strict=True):
        kernel(
            drawn.pool.clone(), drawn.x.view(2, 3, 4, 16),
            drawn.dt[:, :, None].expand(-1, -1, 16).view(2, 3, 4, 16),
            drawn.A[:, None, None].expand(-1, 16, 16), drawn.B.view(2, 3, 2, 16), drawn.C.view(2, 3, 2, 16),
            drawn.D[:, None].expand(-1, 16), dt_bias=drawn.bias[:, None].expand(-1, 16), dt_softplus=True,
            state_batch_indices=slots, out=out, disable_state_update=True, intermediate_states_buffer=buffer,
            cache_steps=3, intermediate_state_indices=torch.arange(2, dtype=torch.int32),
        )  # fmt: skip
    torch.testing.assert_close(*outs, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(*stored, atol=1e-4, rtol=1e-3)


def test_it_is_what_sglangs_kernels_compute() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from tests.engine.cpu.test_state_space import against_sglang as t; t()"],
        env={**os.environ, "TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
