"""Checkpoints: what is read from headers and configs, what is refused, and the YaRN copy."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from harness.compose import load
from harness.errors import ConfigError
from harness.models import draft_head
from harness.models.architecture import described, mtp_tensors, read_architecture
from harness.models.checkpoint import open_checkpoint, preflight
from harness.models.weights import safetensors_header
from harness.models.yarn import yarn_config
from harness.records import Outcome
from harness.sweep import unkeyed
from harness.sweep.cells import expand
from harness.sweep.plan import make_plan

QWEN = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {
        "num_hidden_layers": 48, "mtp_num_hidden_layers": 1, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 256, "hidden_size": 3072, "full_attention_interval": 4,
        "max_position_embeddings": 262144,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                            "mrope_interleaved": True, "mrope_section": [11, 11, 10]},
    },
    "vision_config": {"num_hidden_layers": 27},
}  # fmt: skip
TARGET = [f"model.layers.{i}.mlp.gate.weight" for i in (0, 47)]
MTP = ["mtp.fc.weight", "mtp.layers.0.self_attn.q_proj.weight", "mtp.norm.weight"]


def safetensors(path: Path, names: list[str], fill: bytes = b"\0") -> None:
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name in names:
        header[name] = {"dtype": "BF16", "shape": [4, 2], "data_offsets": [len(data), len(data) + 16]}
        data += fill * 16
    body = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(body)) + body + data)


def write(folder: Path, config=None, names=(*TARGET, *MTP), shards=1, fill=b"\0") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or QWEN))
    names = list(names)
    if shards == 1:
        safetensors(folder / "model.safetensors", names, fill)
        return folder
    mapping = {}
    for i in range(shards):
        part = names[i::shards]
        safetensors(folder / f"m-{i}.safetensors", part, fill)
        mapping |= dict.fromkeys(part, f"m-{i}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))
    return folder


def problems(folder, **arguments):
    checkpoint = open_checkpoint(str(folder))
    return [p.name for p in preflight(checkpoint, **({"speculative": True} | arguments))]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_head_with_weights_passes(tmp_path, shards):
    assert problems(write(tmp_path / "m", shards=shards)) == []


@pytest.mark.parametrize("shards", [1, 2])
def test_promised_and_missing_mtp_weights_are_refused(tmp_path, shards):
    folder = write(tmp_path / "m", names=TARGET, shards=shards)
    assert problems(folder) == ["mtp_weights_missing"]
    assert problems(folder, speculative=False) == []
    problem = preflight(open_checkpoint(str(folder)), speculative=True)[0]
    assert problem.outcome is Outcome.NO_DRAFT_WEIGHTS
    assert "1.00" in problem.message


def test_a_head_without_its_block_is_incomplete(tmp_path):
    names = [*TARGET, "mtp.fc.weight", "mtp.norm.weight"]
    assert problems(write(tmp_path / "m", names=names)) == ["mtp_weights_incomplete"]


def test_fewer_layers_than_promised_are_incomplete(tmp_path):
    config = {**QWEN, "text_config": {**QWEN["text_config"], "mtp_num_hidden_layers": 2}}
    assert problems(write(tmp_path / "m", config)) == ["mtp_weights_incomplete"]


def test_a_checkpoint_without_any_head(tmp_path):
    text = {k: v for k, v in QWEN["text_config"].items() if k != "mtp_num_hidden_layers"}
    assert problems(write(tmp_path / "m", {"text_config": text}, TARGET)) == ["mtp_not_configured"]


@pytest.mark.parametrize(
    "name",
    [
        "mtp.layers.0.mlp.up_proj.weight", "model.mtp.layers.0.x", "model.nextn.eh_proj.weight",
        "model.layers.48.eh_proj.weight", "model.layers.49.self_attn.q_proj.weight",
        "language_model.mtp.layers.0.mixer.in_proj.weight", "model.mtp_layers.0.input_proj.weight",
    ],
)  # fmt: skip
def test_names_of_mtp_tensors(name):
    assert mtp_tensors([name, *TARGET], 48) == [name]


def test_vision_layers_and_attempts_are_no_mtp():
    names = [
        "model.visual.layers.60.attn.qkv.weight",
        "model.layers.3.attempt.weight",
        "model.layers.47.x.weight",
    ]
    assert mtp_tensors(names, 48) == []


def test_context_with_and_without_yarn(tmp_path):
    folder = write(tmp_path / "m")
    assert problems(folder, context_length=262_144) == []
    assert problems(folder, context_length=262_145) == ["context_too_long"]
    assert problems(folder, context_length=1_048_576, yarn_factor=4.0) == []
    assert problems(folder, context_length=1_048_577, yarn_factor=4.0) == ["context_too_long"]
    assert problems(folder, context_length=1_048_576, native_context_tokens=1_048_576) == []


@pytest.mark.parametrize(
    ("text", "layers", "tokens"),
    [
        (None, None, None),
        ("[]", None, None),
        ("{", None, None),
        ('{"vocab_size": 7}', None, 7),
        (
            '{"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64, "vocab_size": true}',
            3,
            None,
        ),
    ],
)
def test_what_config_json_does_not_say_of_a_boot_is_left_out(tmp_path, text, layers, tokens):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    architecture, vocabulary = described(str(tmp_path))
    assert (architecture.get("layers"), vocabulary) == (layers, tokens)


def test_architecture_of_the_families():
    qwen = read_architecture(QWEN)
    assert (qwen.full_attention_layers, qwen.kv_heads, qwen.head_dim, qwen.mtp_layers) == (12, 2, 256, 1)
    assert qwen.draft_kv_bytes_per_token() == 2048
    assert qwen.target_kv_bytes_per_token("fp8_e4m3") == 12 * 1024
    assert qwen.draft_share == pytest.approx(1 / 13)
    nemotron = read_architecture(
        {
            "model_type": "nemotron_h", "num_hidden_layers": 9, "hybrid_override_pattern": "ME*ME*ME-",
            "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "hidden_size": 4096,
            "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E",
        }
    )  # fmt: skip
    assert (nemotron.full_attention_layers, nemotron.mtp_attention_layers) == (2, 1)
    assert nemotron.draft_kv_bytes_per_token() == 1024
    plain = read_architecture({"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64})
    assert (plain.full_attention_layers, plain.kv_heads, plain.head_dim, plain.draft_share) == (3, 4, 16, 0.0)
    listed = read_architecture(
        {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64,
         "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    )  # fmt: skip
    assert listed.full_attention_layers == 1
    with pytest.raises(ConfigError, match="no decoder"):
        read_architecture({"model_type": "clip"})
    with pytest.raises(ConfigError, match="kv_dtype=int3"):
        qwen.draft_kv_bytes_per_token("int3")


def test_fingerprint_follows_content_and_not_the_place(tmp_path):
    one = open_checkpoint(str(write(tmp_path / "a", {**QWEN, "_name_or_path": "x"}))).fingerprint
    assert open_checkpoint(str(write(tmp_path / "b"))).fingerprint == one
    assert open_checkpoint(str(write(tmp_path / "c", fill=b"\1"))).fingerprint != one
    assert open_checkpoint(str(write(tmp_path / "d", {**QWEN, "tie": True}))).fingerprint != one
    assert open_checkpoint(str(write(tmp_path / "e", names=TARGET))).fingerprint != one
    write(tmp_path / "a", {**QWEN, "changed": 1})
    assert open_checkpoint(str(tmp_path / "a")).fingerprint != one


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "is not JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
        (lambda f: (f / "m-1.safetensors").unlink(), "lacks 1 of its weight files"),
        (lambda f: os.truncate(f / "m-1.safetensors", 200), "is cut|no complete"),
        (lambda f: (f / "m-1.safetensors").write_bytes(b"x" * 40), "no complete"),
        (lambda f: (f / "m-1.safetensors").write_bytes(b""), "no complete"),
        (
            lambda f: (f / "m-1.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"),
            "lfs pull",
        ),
        (
            lambda f: (f / "config.json").write_text("version https://git-lfs.github.com/spec/v1\n"),
            "lfs pull",
        ),
        (lambda f: safetensors(f / "m-1.safetensors", ["other"]), "no shard holds"),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "no weight_map"),
    ],
)
def test_damage_is_named(tmp_path, damage, message):
    folder = write(tmp_path / "m", shards=2)
    open_checkpoint(str(folder))
    damage(folder)
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(str(folder))


def test_no_weights_at_all(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    with pytest.raises(ConfigError, match="holds no weights"):
        open_checkpoint(str(tmp_path))


def test_sources_that_are_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "file").write_text("")
    for source, message in [
        ("/no/such/place", "does not exist"),
        ("./missing", "does not exist"),
        ("justaname", "does not exist"),
        (str(tmp_path / "file"), "is a file"),
        ("package:huge", "not shipped"),
    ]:
        with pytest.raises(ConfigError, match=message):
            open_checkpoint(source)
    with pytest.raises(ConfigError, match="not downloaded"):
        open_checkpoint("nobody/never-heard-of-it", download=False)


def test_the_shipped_checkpoint_opens():
    checkpoint = open_checkpoint("package:tiny")
    assert preflight(checkpoint, speculative=True, context_length=32_768) == []
    assert checkpoint.serving_path(None) == checkpoint.path
    assert checkpoint.describe()["fingerprint"] == checkpoint.fingerprint


# -- YaRN -------------------------------------------------------------------------------------------------


def test_yarn_keeps_the_other_rope_keys():
    new = yarn_config(QWEN, 4.0)
    text = new["text_config"]
    assert text["max_position_embeddings"] == 1_048_576
    assert text["rope_parameters"] == QWEN["text_config"]["rope_parameters"] | {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 262_144,
    }  # fmt: skip
    assert QWEN["text_config"]["rope_parameters"]["rope_type"] == "default"
    assert new["vision_config"] == QWEN["vision_config"]
    assert yarn_config(new, 4.0) == new


def test_yarn_on_a_flat_config_without_rope_settings():
    flat = {"max_position_embeddings": 1000, "num_hidden_layers": 2}
    new = yarn_config(flat, 2)
    assert new["rope_scaling"] == {
        "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1000,
    }  # fmt: skip
    assert new["max_position_embeddings"] == 2000


@pytest.mark.parametrize(
    ("config", "factor", "message"),
    [
        (QWEN, 1.0, "above 1"),
        (QWEN, float("nan"), "above 1"),
        ({"num_hidden_layers": 2}, 4, "max_position_embeddings"),
        ({"max_position_embeddings": 8, "rope_scaling": {"rope_type": "llama3"}}, 4, "llama3"),
        (yarn_config(QWEN, 2.0), 4.0, "already carries YaRN of factor 2"),
    ],
)
def test_yarn_refusals(config, factor, message):
    with pytest.raises(ConfigError, match=message):
        yarn_config(config, factor)


def test_the_copy_is_made_once_and_repaired(tmp_path, monkeypatch):
    monkeypatch.setenv("WMTP_CACHE", str(tmp_path / "cache"))
    folder = write(tmp_path / "m", shards=2)
    (folder / "tokenizer.json").write_text("{}")
    checkpoint = open_checkpoint(str(folder))
    copy = checkpoint.serving_path(4.0)
    assert (
        json.loads((copy / "config.json").read_text())["text_config"]["max_position_embeddings"] == 1_048_576
    )
    assert json.loads((folder / "config.json").read_text()) == QWEN
    assert (copy / "m-0.safetensors").is_symlink()
    assert {p.name for p in copy.iterdir()} == {p.name for p in folder.iterdir()}
    before = copy.stat().st_ino
    assert checkpoint.serving_path(4.0) == copy
    assert copy.stat().st_ino == before
    (copy / "m-0.safetensors").unlink()
    (copy / "m-0.safetensors").symlink_to("/no/where")
    assert checkpoint.serving_path(4.0) == copy
    assert (copy / "m-0.safetensors").resolve() == (folder / "m-0.safetensors").resolve()
    assert checkpoint.serving_path(2.0) != copy
    assert [p for p in copy.parent.iterdir() if p.name.startswith(".")] == []
    assert open_checkpoint(str(copy)).architecture.context_tokens == 1_048_576


def test_equal_checkpoints_in_two_places_have_their_own_copies(tmp_path, monkeypatch):
    monkeypatch.setenv("WMTP_CACHE", str(tmp_path / "cache"))
    one = open_checkpoint(str(write(tmp_path / "a")))
    two = open_checkpoint(str(write(tmp_path / "b")))
    assert one.fingerprint == two.fingerprint
    assert one.serving_path(4.0) != two.serving_path(4.0)


def test_an_unwritable_cache_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("WMTP_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match="WMTP_CACHE"):
        open_checkpoint(str(write(tmp_path / "m"))).serving_path(4.0)


def test_another_training_of_the_draft_head_is_told_where_the_fingerprint_samples_past_it(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("WMTP_CACHE", str(tmp_path / "cache"))
    for name in ("a", "b"):
        shutil.copytree(Path(open_checkpoint("package:tiny").path), tmp_path / name)
    before = open_checkpoint(str(tmp_path / "a"))
    head = next(n for n in mtp_tensors(before.weights.tensors, before.architecture.layers) if "proj" in n)
    (path,) = (tmp_path / "b").glob("*.safetensors")
    entries, start = safetensors_header(path)
    with path.open("r+b") as file:
        file.seek(start + entries[head]["data_offsets"][0] + 1000)
        file.write(b"\x3c\x3c")
    after = open_checkpoint(str(tmp_path / "b"))
    assert after.fingerprint == before.fingerprint
    assert after.draft_head != before.draft_head
    monkeypatch.setattr(draft_head, "_digest", None)  # read once: the rest comes from the cache
    again = draft_head.head_digest([path], [head for head in entries if "mtp" in head])
    assert again == after.draft_head
    cells = expand(load(["hardware=cpu", "arm=native", "depth=3", f"model.path={tmp_path / 'a'}"]))
    record_settings = make_plan(cells, tmp_path).boots[0].spec.settings
    cells = expand(load(["hardware=cpu", "arm=native", "depth=3", f"model.path={tmp_path / 'b'}"]))
    changes = unkeyed.changes(record_settings, make_plan(cells, tmp_path).boots[0].spec.settings)
    assert changes.startswith(f"{unkeyed.DRAFT_HEAD} was {before.draft_head}, is ")
