"""Altered checkpoints differ from the shipped one in what they say and in nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness.engine.tiny import checkpoint_path
from harness.engine.tiny.config import TinyConfig
from harness.engine.tiny.export import read_model
from harness.engine.tiny.layers import rotation
from harness.engine.tiny.variants import VARIANTS, main, write_variant
from harness.errors import ConfigError

Tensors = dict[str, torch.Tensor]


def loaded(folder: Path) -> Tensors:
    tensors: Tensors = load_file(str(folder / "model.safetensors"))
    return tensors


@pytest.fixture(scope="module")
def shipped() -> Tensors:
    return loaded(checkpoint_path())


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_variant_is_a_whole_checkpoint(name: str, tmp_path: Path) -> None:
    folder = write_variant(name, tmp_path / name)
    files = {path.name for path in folder.iterdir()}
    assert files == {
        "config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    settings = json.loads((folder / "config.json").read_text())
    stored = {str(t.dtype) for n, t in loaded(folder).items() if not n.endswith("A_log")}
    assert stored == {f"torch.{settings['dtype']}"}


def test_float32_holds_the_same_numbers(shipped: Tensors, tmp_path: Path) -> None:
    wide = loaded(write_variant("float32", tmp_path))
    assert wide.keys() == shipped.keys()
    assert all(torch.equal(wide[name], shipped[name].float()) for name in shipped)


def test_draft_weights_missing_or_random(shipped: Tensors, tmp_path: Path) -> None:
    bare = loaded(write_variant("without_mtp", tmp_path / "a"))
    assert bare.keys() == {name for name in shipped if not name.startswith("mtp.")}
    random = loaded(write_variant("random_mtp", tmp_path / "b"))
    for name, value in shipped.items():
        if not name.startswith("mtp."):
            assert torch.equal(random[name], value), name
    assert not torch.equal(random["mtp.fc.weight"], shipped["mtp.fc.weight"])
    again = loaded(write_variant("random_mtp", tmp_path / "c"))
    assert torch.equal(random["mtp.fc.weight"], again["mtp.fc.weight"])
    assert json.loads((tmp_path / "a" / "config.json").read_text())["mtp_num_hidden_layers"] == 1


def test_flat_draft_attends_evenly(tmp_path: Path) -> None:
    model = read_model(write_variant("flat_mtp", tmp_path))
    layer = model.mtp.layers[0]
    x = torch.randn(1, 12, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        by = rotation(model.config, torch.arange(12)[None])
        q, _, v, gate = layer.self_attn.project(x, by)
        assert float(q.abs().max()) == 0
        repeat = model.config.num_attention_heads // model.config.num_key_value_heads
        mean = v.repeat_interleave(repeat, 2).cumsum(1) / torch.arange(1, 13)[None, :, None, None]
        torch.testing.assert_close(layer.self_attn(x, by)[0], layer.self_attn.finish(mean, gate))


def test_nan_reaches_the_logits(tmp_path: Path) -> None:
    model = read_model(write_variant("nan", tmp_path))
    with torch.no_grad():
        states = model.states(torch.tensor([[5, 6, 7]]))
        logits = model.lm_head(states)
    assert bool(states.isfinite().all())
    assert bool(logits.softmax(-1).isnan().all())


def test_moe_equals_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = write_variant("moe_float32", tmp_path)
    settings = json.loads((folder / "config.json").read_text())
    assert settings["architectures"] == ["Qwen3_5MoeForCausalLM"]
    assert TinyConfig.read(settings).num_experts == 8
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    ids = torch.randint(3, 500, (1, 80), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(read_model(folder)(ids), theirs.eval()(ids).logits, atol=5e-4, rtol=5e-4)


def test_unknown_variant_and_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="no variant 'huge'"):
        write_variant("huge", tmp_path)
    main(["nan", str(tmp_path / "nan")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "nan")
