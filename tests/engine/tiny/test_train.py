"""Training runs from nothing, repeats itself and leaves a checkpoint that loads."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from harness.engine.tiny.batches import SHORT_ROW, Batches
from harness.engine.tiny.config import TinyConfig
from harness.engine.tiny.export import read_model
from harness.engine.tiny.train import Plan, Training, rate, train

SHAPE = TinyConfig(
    hidden_size=32, intermediate_size=32, num_hidden_layers=2, full_attention_interval=2, head_dim=16,
    num_key_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=16,
)  # fmt: skip
PLAN = Plan(
    steps=2, draft_from=0.0, trunk_until=0.9, chains=8, tokenizer_texts=30, vocab_size=400,
    tokens_per_step=400, evaluate_every=0,
)  # fmt: skip


def test_two_steps_train_both_parts_and_repeat(tmp_path: Path) -> None:
    first = train(PLAN, SHAPE, tmp_path / "a").state_dict()
    second = train(PLAN, SHAPE, tmp_path / "b").state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    back = read_model(tmp_path / "a").state_dict()
    for name, value in first.items():
        torch.testing.assert_close(back[name], value, atol=0, rtol=2**-7)
    tokenizers = [(tmp_path / run / "tokenizer.json").read_bytes() for run in ("a", "b")]
    assert tokenizers[0] == tokenizers[1]


@pytest.fixture
def run(tmp_path: Path) -> Training:
    train(PLAN, SHAPE, tmp_path)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    plan = Plan(steps=10, draft_from=0.4, trunk_until=0.8, chains=8, tokens_per_step=400)
    config = TinyConfig(**{**SHAPE.__dict__, "vocab_size": 448})
    return Training(plan, config, Batches(tokenizer, 0, 400))


def changed(run: Training, step: int) -> tuple[set[str], tuple[float, float]]:
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    losses = run.step(step)
    after = run.model.state_dict()
    return {name for name in before if not torch.equal(before[name], after[name])}, losses


def test_phases_move_their_own_weights_only(run: Training) -> None:
    early, losses = changed(run, 1)
    assert early and not any(name.startswith("mtp.") for name in early)
    assert math.isfinite(losses[0]) and math.isnan(losses[1])
    both, losses = changed(run, 4)
    assert any(name.startswith("mtp.") for name in both) and any(not n.startswith("mtp.") for n in both)
    assert all(map(math.isfinite, losses))
    last, losses = changed(run, 9)
    assert last and all(name.startswith("mtp.") for name in last)
    assert math.isnan(losses[0]) and math.isfinite(losses[1])


def test_loss_falls_on_one_batch(run: Training) -> None:
    # A step's batch depends on its number alone.
    losses = [run.step(1)[0] for _ in range(12)]
    assert losses[-1] < losses[0] - 0.5


def test_rate_rises_holds_and_falls() -> None:
    assert rate(0.0, 0.0, 1.0) == 0.05
    assert rate(0.3, 0.0, 1.0) == 1.0
    assert rate(1.0, 0.0, 1.0) == 0.02
    assert 0.4 < rate(0.775, 0.0, 1.0) < 0.6
    assert rate(0.5, 0.5, 1.0) == 0.05


def test_rows_grow() -> None:
    plan = Plan(steps=1000)
    assert plan.row_tokens(1) == SHORT_ROW
    assert {plan.row_tokens(step) for step in range(900, 1000)} == {SHORT_ROW, 512, 1024, 2048}
