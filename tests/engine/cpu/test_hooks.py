"""The hooks of CPU mode, without a server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from harness.engine.cpu import hooks, linear


def test_verified_states_are_committed() -> None:
    """Request 0 keeps step 2, request 1 nothing, request 2 step 0; slots of others stay."""
    layers, slots, rows, steps = 2, 6, 4, 3
    caches = SimpleNamespace(
        temporal=torch.randn(layers, slots, 2, 3, 3),
        intermediate_ssm=torch.randn(layers, rows, steps, 2, 3, 3),
        conv=[torch.randn(layers, slots, 5, 3).bfloat16(), torch.empty(layers, slots, 0, 3)],
        intermediate_conv_window=[
            torch.randn(layers, rows, steps, 5, 3).bfloat16(),
            torch.empty(layers, rows, steps, 0, 3),
        ],
    )
    temporal, conv = caches.temporal.clone(), caches.conv[0].clone()
    for slot, row, step in ((4, 3, 2), (1, 0, 0), (5, 3, 1)):
        temporal[:, slot] = caches.intermediate_ssm[:, row, step]
        conv[:, slot] = caches.intermediate_conv_window[0][:, row, step]
    hooks.commit_verified_states(
        caches, torch.tensor([4, 2, 1]), torch.tensor([2, -1, 0]), torch.tensor([5, -1, 0]),
        torch.tensor([1, 0, -1]), torch.tensor([3, 1, 0]),
    )  # fmt: skip
    assert torch.equal(caches.temporal, temporal)
    assert torch.equal(caches.conv[0], conv)


def test_scratch_rows_default_to_the_batch_order() -> None:
    caches = SimpleNamespace(
        temporal=torch.zeros(1, 4, 1), intermediate_ssm=torch.arange(6.0).view(1, 3, 2, 1), conv=[],
        intermediate_conv_window=[],
    )  # fmt: skip
    hooks.commit_verified_states(caches, torch.tensor([3, 1]), torch.tensor([1, 0]), None, None)
    assert caches.temporal.flatten().tolist() == [0, 2, 0, 1]


def test_shared_expert_gate() -> None:
    hidden, gate, shared = torch.randn(4, 8), torch.randn(1, 8), torch.randn(4, 8)
    routed = torch.randn(4, 8)
    expected = shared.double() / (1 + torch.exp(-(hidden.double() @ gate[0].double())))[:, None]
    torch.testing.assert_close(
        hooks.gated_shared_expert(hidden, gate, shared).double(), expected, atol=1e-5, rtol=1e-5
    )
    total = routed.double() + expected
    hooks.add_gated_shared_expert(hidden, gate, shared, routed)
    torch.testing.assert_close(routed.double(), total, atol=1e-5, rtol=1e-5)


def test_the_cpu_backend_stays() -> None:
    view = SimpleNamespace(device="cpu", attention_backend="intel_amx")
    assert hooks.keep_attention_backend(lambda _: {"attention_backend": "torch_native"}, view) == {}
    view.attention_backend = "other"
    assert hooks.keep_attention_backend(lambda _: {"x": 1}, view) == {"x": 1}


def test_nccl_is_off_however_it_was_asked_for() -> None:
    assert hooks.without_nccl("ranks", 0, "gloo", True, 5) == (("ranks", 0, "gloo", False, 5), {})
    assert hooks.without_nccl("ranks", use_pynccl=True) == (("ranks",), {"use_pynccl": False})
    assert hooks.without_nccl("ranks", 0, backend="gloo") == (
        ("ranks", 0),
        {"backend": "gloo", "use_pynccl": False},
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(8, 128), (512, 128), (128, 256), (833, 77), (1, 64)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_rows_do_not_depend_on_their_number(dtype, outputs, inputs, with_bias) -> None:
    x, weight = torch.randn(48, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    bias = torch.randn(outputs).to(dtype) if with_bias else None
    alone = torch.cat(
        [linear.stable_linear(functional.linear, x[i : i + 1], weight, bias) for i in range(20)]
    )
    # one output is a matrix-vector product, whose rows are repeatable below PADDED_ROWS only
    for rows in range(1, 20 if outputs > 1 else linear.PADDED_ROWS):
        assert torch.equal(linear.stable_linear(functional.linear, x[:rows], weight, bias), alone[:rows])
    torch.testing.assert_close(alone, functional.linear(x[:20], weight, bias), atol=2e-1, rtol=2e-2)


def test_lm_head_is_padded_and_cut() -> None:
    shapes = []

    def original(self, hidden, head, bias=None, *, out=None):
        shapes.append(hidden.shape[0])
        return torch.matmul(hidden, head.weight.T)

    head = SimpleNamespace(weight=torch.randn(97, 64))
    hidden = torch.randn(20, 64)
    logits = [linear.stable_lm_head(original, None, hidden[:n], head, None, out=None) for n in range(1, 20)]
    assert [len(part) for part in logits] == list(range(1, 20))
    assert all(torch.equal(part[0], logits[0][0]) for part in logits)
    assert set(shapes) <= {*range(1, 20)}
    assert linear.stable_lm_head(original, None, hidden[:0], head).shape == (0, 97)


def test_padding_is_used_only_where_a_shape_needs_it(monkeypatch) -> None:
    monkeypatch.setattr(linear, "_needs_padding", {})
    calls = []

    def product(x, weight, bias=None):
        calls.append(x.shape[0])
        return functional.linear(x.double(), weight.double()).float() + (0 if x.shape[0] > 1 else 1e-3)

    weight = torch.randn(3, 4)
    linear.stable_linear(product, torch.randn(1, 4), weight)
    assert calls[-1] == linear.PADDED_ROWS
    calls.clear()
    linear.stable_linear(
        lambda x, w, b=None: calls.append(x.shape[0]) or (x.double() @ w.T.double()),
        torch.randn(1, 6),
        torch.ones(2, 6),
    )
    assert calls[-1] == 1
