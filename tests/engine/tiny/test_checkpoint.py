"""The shipped checkpoint: complete, small, loadable by others, and able to answer."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from generators import Tokenizer as PromptTokenizer
from harness.engine.tiny import checkpoint_path
from harness.engine.tiny.evaluate import draft_agreement, held_out, retrieval_scores
from harness.engine.tiny.export import read_model
from harness.engine.tiny.model import TinyHybrid
from harness.engine.tiny.tokenizer import CHAT_TEMPLATE, TURN_END, chat_prompt
from harness.errors import ConfigError

MESSAGE = "Which secret numbers?\n\n  1. amber-falcon: 0123456 é 中文 <tag> ..."


@pytest.fixture(scope="module")
def folder() -> Path:
    return checkpoint_path()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def model(folder: Path) -> TinyHybrid:
    return read_model(folder)


def test_at_most_four_megabytes(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.rglob("*")) <= 4_000_000


def test_path_needs_no_torch() -> None:
    code = "import sys, harness.engine.tiny as t; t.checkpoint_path(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_incomplete_installation_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.engine import tiny

    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    monkeypatch.setattr(tiny, "files", lambda _name: tmp_path)
    with pytest.raises(ConfigError, match=r"lacks model\.safetensors, tokenizer\.json"):
        tiny.checkpoint_path()


def test_ids_and_sizes_agree(folder: Path, tokenizer: Tokenizer, model: TinyHybrid) -> None:
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    end = tokenizer.token_to_id(TURN_END)
    assert config["eos_token_id"] == generation["eos_token_id"] == end
    assert tokenizer.get_vocab_size() <= config["vocab_size"]
    assert config["mtp_num_hidden_layers"] == 1
    assert config["num_key_value_heads"] % 2 == 0
    assert set(config["layer_types"]) == {"linear_attention", "full_attention"}
    assert all(bool(value.isfinite().all()) for value in model.state_dict().values())


def test_tokenizer_round_trip(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(MESSAGE).ids
    assert tokenizer.decode(ids) == MESSAGE
    number = tokenizer.encode("7654321").ids
    assert len(number) == 7
    assert max(ids) < tokenizer.get_vocab_size()


def test_chat_template_is_the_same_everywhere(folder: Path, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": MESSAGE}]
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    serving = PromptTokenizer.load(folder)
    assert rendered == chat_prompt(MESSAGE) == serving.text(MESSAGE)
    ids = tokenizer.encode(chat_prompt(MESSAGE)).ids
    assert ids == serving.encode(MESSAGE).tolist()
    assert ids == theirs(rendered, add_special_tokens=False)["input_ids"]
    assert theirs.chat_template == CHAT_TEMPLATE
    assert theirs.eos_token == TURN_END


def test_forward_equals_transformers(folder: Path, tokenizer: Tokenizer, model: TinyHybrid) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    made = held_out(512, 0)
    ids = torch.tensor([tokenizer.encode(chat_prompt(made.message) + made.answer).ids])
    with torch.no_grad():
        ours, other = model(ids), theirs.eval()(ids).logits
    torch.testing.assert_close(ours, other, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("setting", [200, 512])
def test_digits_are_retrieved_well_above_chance(
    model: TinyHybrid, tokenizer: Tokenizer, setting: int
) -> None:
    assert retrieval_scores(model, tokenizer, setting, 8, free=False).digits > 0.4


def test_draft_agrees_at_every_step_but_not_always(model: TinyHybrid, tokenizer: Tokenizer) -> None:
    shares = draft_agreement(model, tokenizer)
    assert all(0.3 < share < 1 for share in shares), shares


@pytest.mark.slow
def test_free_answers_hold_values_and_end(model: TinyHybrid, tokenizer: Tokenizer) -> None:
    scores = retrieval_scores(model, tokenizer, 200, 24)
    # Two of 48 lines were right when the checkpoint was made; by chance a seven-digit line never is.
    assert scores.values > 0.02
    assert scores.ended > 0.9


@torch.no_grad()
def test_far_positions_do_not_break_it(model: TinyHybrid, tokenizer: Tokenizer) -> None:
    """At positions around 32K the answer's digits are still read better than chance, with finite logits."""
    right = total = 0
    digits = {tokenizer.token_to_id(d) for d in "0123456789"}
    for index in range(6):
        made = held_out(200, index)
        prompt = tokenizer.encode(chat_prompt(made.message)).ids
        answer = tokenizer.encode(made.answer).ids
        ids = torch.tensor([prompt + answer])
        logits = model(ids, torch.arange(ids.shape[1])[None] + 32_000)
        assert bool(logits.isfinite().all())
        said = logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
        right += sum(a == b for a, b in zip(said, answer, strict=True) if b in digits)
        total += sum(b in digits for b in answer)
    assert not math.isclose(total, 0)
    assert right / total > 0.3
