"""The tiny model's maths against slow references and against transformers' own Qwen3.5."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.engine.tiny.config import TinyConfig
from harness.engine.tiny.delta_net import gated_delta_rule
from harness.engine.tiny.export import read_model, weights, write_model
from harness.engine.tiny.initialise import initialise
from harness.engine.tiny.model import TinyHybrid
from harness.engine.tiny.optimiser import orthogonalised

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "full_attention_interval": 2, "num_key_value_heads": 2, "head_dim": 16,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip


def small(**sizes: int) -> TinyHybrid:
    model = TinyHybrid(TinyConfig(**{**SMALL, **sizes}))
    initialise(model, 5)
    return model.eval()


def token_by_token(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """The recurrence as it is written down, in float64."""
    q, k, v, log_decay, beta = (x.double() for x in (q, k, v, log_decay, beta))
    out = torch.zeros_like(v)
    for row in range(len(q)):
        state = torch.zeros(q.shape[-1], v.shape[-1], dtype=torch.float64)
        for i in range(q.shape[1]):
            state = state * log_decay[row, i].exp()
            error = v[row, i] - state.T @ k[row, i]
            state = state + torch.outer(k[row, i], beta[row, i] * error)
            out[row, i] = state.T @ q[row, i]
    return out


@settings(max_examples=25)
@given(tokens=st.integers(1, 70), chunk=st.sampled_from([4, 16, 64]), seed=st.integers(0, 999))
def test_chunked_delta_rule_is_the_recurrence(tokens: int, chunk: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, tokens, 8, generator=random) for _ in range(2))
    k = k / k.norm(dim=-1, keepdim=True)
    v = torch.randn(2, tokens, 6, generator=random)
    log_decay = -3 * torch.rand(2, tokens, generator=random)
    beta = torch.rand(2, tokens, generator=random)
    got = gated_delta_rule(q, k, v, log_decay, beta, chunk)
    torch.testing.assert_close(got.double(), token_by_token(q, k, v, log_decay, beta), atol=2e-4, rtol=2e-4)


def test_trunk_is_causal() -> None:
    model = small()
    ids = torch.randint(0, 64, (1, 90), generator=torch.Generator().manual_seed(1))
    changed = ids.clone()
    changed[0, 50:] = 7
    with torch.no_grad():
        torch.testing.assert_close(model(ids)[:, :50], model(changed)[:, :50])
        assert not torch.allclose(model(ids)[:, 50:], model(changed)[:, 50:])


def test_draft_chain_is_attention_over_the_text_so_far() -> None:
    """Steps 1 and 2 of a chain equal the draft layer run over the very sequence those steps attend to."""
    model = small()
    random = torch.Generator().manual_seed(2)
    hidden, tokens, base = 32, 9, 5
    fed = torch.randn(1, tokens, hidden, generator=random)
    states = torch.randn(1, tokens, hidden, generator=random)
    extra = torch.randn(1, 1, hidden, generator=random)
    positions = torch.arange(tokens)[None]
    with torch.no_grad():
        first, cache = model.mtp.first(fed, states, positions)
        places = torch.tensor([[base]])
        second = model.mtp.next(extra, first[:, [base]], torch.tensor([[base + 1]]), places, cache)
        whole, _ = model.mtp.first(
            torch.cat([fed[:, : base + 1], extra], 1),
            torch.cat([states[:, : base + 1], first[:, [base]]], 1),
            torch.arange(base + 2)[None],
        )
    torch.testing.assert_close(first[:, : base + 1], whole[:, : base + 1])
    torch.testing.assert_close(second[:, 0], whole[:, base + 1])


def transformers_logits(folder: Path, ids: Tensor) -> Tensor:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    assert type(theirs).__name__ in {"Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"}
    with torch.no_grad():
        return theirs.eval()(ids).logits


@pytest.mark.parametrize("experts", [0, 4])
def test_random_model_equals_transformers(tmp_path: Path, experts: int) -> None:
    model = small(num_experts=experts)
    write_model(model.config, weights(model, "float32"), tmp_path, dtype="float32", bos_id=0, eos_id=2)
    ids = torch.randint(0, 64, (2, 100), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        ours = model(ids)
    torch.testing.assert_close(ours, transformers_logits(tmp_path, ids), atol=2e-4, rtol=2e-4)


def test_written_model_is_read_back(tmp_path: Path) -> None:
    model = small()
    write_model(model.config, weights(model, "float32"), tmp_path, dtype="float32", bos_id=0, eos_id=2)
    back = read_model(tmp_path)
    assert back.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(value, back.state_dict()[name]), name


def test_initial_weights_come_from_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = small().state_dict()
    torch.manual_seed(2)
    second = small().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_orthogonalised_has_singular_values_near_one() -> None:
    matrix = torch.randn(24, 40, generator=torch.Generator().manual_seed(4))
    for given_matrix in (matrix, matrix.T):
        singular = torch.linalg.svdvals(orthogonalised(given_matrix))
        assert singular.min() > 0.5
        assert singular.max() < 1.5
