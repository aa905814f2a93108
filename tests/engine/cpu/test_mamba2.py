"""What CPU mode puts in place for Nemotron-H's layers, without a server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from harness.engine.cpu import mamba2


def test_experts_without_a_gate() -> None:
    """Each token's chosen experts, weighted; one expert is nobody's choice."""
    tokens, hidden, width, experts = 5, 8, 6, 4
    layer = SimpleNamespace(
        w13_weight=torch.randn(experts, width, hidden), w2_weight=torch.randn(experts, hidden, width)
    )
    x, weights = torch.randn(tokens, hidden), torch.rand(tokens, 2)
    chosen = torch.tensor([[0, 1], [1, 0], [3, 1], [0, 3], [3, 0]], dtype=torch.int32)
    config = SimpleNamespace(is_gated=False, activation="relu2")
    found = mamba2.ungated_experts(pytest.fail, layer, x, (weights, chosen, None), config)
    for t in range(tokens):
        expected = torch.zeros(hidden, dtype=torch.float64)
        for k in range(2):
            up, down = layer.w13_weight[chosen[t, k]].double(), layer.w2_weight[chosen[t, k]].double()
            inner = (up @ x[t].double()).clamp(min=0) ** 2
            expected += float(weights[t, k]) * (down @ inner)
        torch.testing.assert_close(found[t].double(), expected, atol=1e-4, rtol=1e-4)


def test_gated_experts_stay_sglangs() -> None:
    config = SimpleNamespace(is_gated=True, activation="silu")
    assert mamba2.ungated_experts(lambda *args: args, 1, 2, 3, config) == (1, 2, 3, config)


def test_products_into_another_dtype() -> None:
    x, weight = torch.randn(3, 8).bfloat16(), torch.randn(8, 5).bfloat16()
    found = mamba2.product_in_dtype(torch.mm, x, weight, out_dtype=torch.float32)
    torch.testing.assert_close(found, x.float() @ weight.float())
    assert torch.equal(mamba2.product_in_dtype(torch.mm, x, weight), torch.mm(x, weight))


def test_there_is_no_gpu_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    for available in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=available: found)
        mamba2.wait_for_gpu(waited.append, available)
    assert waited == [True]
