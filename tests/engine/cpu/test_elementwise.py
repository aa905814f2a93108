"""Norms, gates and splits against their definitions in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.engine.cpu.pythonpath.sgl_kernel import elementwise

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide / torch.sqrt((wide**2).mean(-1, keepdim=True) + eps) * weight.double()


def close(mine: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert mine.dtype == dtype
    torch.testing.assert_close(mine.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_query_key_norms(dtype, tokens) -> None:
    heads, kv_heads, dim = 4, 2, 8
    packed = torch.randn(tokens, heads * 2 * dim + kv_heads * dim).to(dtype)
    q_gate, k = packed.split([heads * 2 * dim, kv_heads * dim], -1)
    q_weight, k_weight = torch.randn(dim).to(dtype), torch.randn(dim).to(dtype)
    q, key, gate = elementwise.fused_qk_gemma_rmsnorm_with_gate_cpu(
        q_gate, k, q_weight, k_weight, 1e-3, dim, heads
    )
    pairs = q_gate.reshape(tokens, heads, 2 * dim)
    close(q, rms_norm(pairs[..., :dim].reshape(-1, dim), 1 + q_weight.double(), 1e-3), dtype)
    close(key, rms_norm(k.reshape(-1, dim), 1 + k_weight.double(), 1e-3), dtype)
    assert torch.equal(gate, pairs[..., dim:].reshape(-1, dim))
    query = pairs[..., :dim].flatten(1)
    plain_q, plain_k = elementwise.fused_qk_gemma_rmsnorm_cpu(query, k, q_weight, k_weight, 1e-3, dim)
    assert torch.equal(plain_q, q)
    assert torch.equal(plain_k, key)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_norm(dtype) -> None:
    x, z, weight = torch.randn(6, 8).to(dtype), torch.randn(6, 8).to(dtype), torch.randn(8)
    wide = z.double()
    expected = rms_norm(x, weight, 1e-3) * wide / (1 + torch.exp(-wide))
    close(elementwise.fused_rmsnorm_gated_cpu(x, weight, z, 1e-3), expected, dtype)
    close(elementwise.fused_rmsnorm_gated_cpu(x, weight, None, 1e-3), rms_norm(x, weight, 1e-3), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_gate_is_in_place(dtype) -> None:
    x, gate = torch.randn(3, 16).to(dtype), torch.randn(6, 8).to(dtype)
    expected = x.double() / (1 + torch.exp(-gate.double().view(3, 16)))
    elementwise.fused_sigmoid_mul_cpu(x, gate)
    close(x, expected, dtype)


def test_split_of_the_input_projections() -> None:
    key_heads, value_heads, key_dim, value_dim, tokens = 2, 4, 3, 5, 2
    q, k = torch.randn(tokens, key_heads * key_dim), torch.randn(tokens, key_heads * key_dim)
    v, z = torch.randn(tokens, value_heads * value_dim), torch.randn(tokens, value_heads * value_dim)
    b, a = torch.randn(tokens, value_heads), torch.randn(tokens, value_heads)
    qkv, z_out, b_out, a_out = elementwise.fused_qkvzba_split_reshape_cat_contiguous_cpu(
        torch.cat([q, k, v, z], 1), torch.cat([b, a], 1), key_heads, value_heads, key_dim, value_dim
    )
    assert torch.equal(qkv, torch.cat([q, k, v], 1))
    assert torch.equal(z_out, z.view(tokens, value_heads, value_dim))
    assert torch.equal(b_out, b)
    assert torch.equal(a_out, a)
    assert qkv.is_contiguous() and b_out.is_contiguous() and a_out.is_contiguous()
