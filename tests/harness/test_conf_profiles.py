"""The shipped model and hardware profiles follow the schema and the paper."""

from __future__ import annotations

from importlib.resources import files

import pytest

from harness import compose

MODELS = sorted(
    p.name.removesuffix(".yaml") for p in files("conf").joinpath("model").iterdir() if ".yaml" in p.name
)
HARDWARE = ("b200", "h100", "h200", "cpu")
# name in records, F
PAPER = {
    "qwen3_6_35b": ("qwen3.6-35b-a3b", 10),
    "qwen3_6_35b_fp8": ("qwen3.6-35b-a3b-fp8-h100", 10),
    "qwen3_5_122b": ("qwen3.5-122b-a10b", 12),
    "nemotron3_super_120b": ("nemotron-3-super-120b-a12b", 8),
}


@pytest.mark.parametrize("model", MODELS)
def test_every_model_composes(model):
    path = ["model.path=/models/mine"] if model == "custom" else []
    config = compose.load([f"model={model}", "hardware=cpu", *path]).model
    assert config.path
    if model in PAPER:
        assert (config.name, config.full_attention_layers) == PAPER[model]
        assert (config.native_context_tokens or 0) * (config.yarn_factor or 1) >= 1_040_000
        assert (config.default_window, config.default_sink) == (4032, 64)


def test_the_paper_s_models_are_all_there():
    assert set(PAPER) | {"tiny", "custom"} <= set(MODELS)


@pytest.mark.parametrize("hardware", HARDWARE)
def test_every_hardware_profile_serves_every_speculative_arm(hardware):
    config = compose.load(["model=tiny", f"hardware={hardware}"]).hardware
    assert config.name == hardware
    assert set(config.draft_backend) == {"native", "windowed", "ring"}
    if config.device == "cuda":
        assert (config.draft_backend["native"], config.draft_backend["ring"]) == ("flashinfer", "triton")
        assert config.target_backend == "flashinfer"
        assert config.mem_fraction_static == 0.85
        assert config.bandwidth_gb_per_s > 0


def test_auto_becomes_the_detected_profile(monkeypatch):
    monkeypatch.setattr(compose, "detect_hardware", lambda: "h200")
    assert compose.load(["model=tiny", "hardware=auto"]).hardware.name == "h200"
