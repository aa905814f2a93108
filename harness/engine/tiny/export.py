"""The model as a checkpoint folder, and back."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.engine.tiny.config import TinyConfig
from harness.engine.tiny.model import TinyHybrid
from harness.errors import ConfigError

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def weights(model: TinyHybrid, dtype: str) -> dict[str, Tensor]:
    """The model's tensors as stored: in `dtype`, decay rates always in float32.

    Raises:
        ConfigError: the dtype is neither bfloat16 nor float32.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"A tiny checkpoint is written in {' or '.join(DTYPES)}, not in {dtype!r}.")
    return {
        name: tensor.detach().to(torch.float32 if name.endswith("A_log") else DTYPES[dtype]).contiguous()
        for name, tensor in model.state_dict().items()
    }


def write_model(
    config: TinyConfig, tensors: dict[str, Tensor], folder: Path, *, dtype: str, bos_id: int, eos_id: int
) -> None:
    """Write `model.safetensors`, `config.json` and `generation_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    write_json(folder / "config.json", config.hugging_face(bos_id, eos_id, dtype))
    generation = {"bos_token_id": bos_id, "eos_token_id": eos_id, "pad_token_id": bos_id, "do_sample": False}
    write_json(folder / "generation_config.json", generation)


def write_json(path: Path, value: object) -> None:
    """Write one JSON file."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def read_model(folder: Path) -> TinyHybrid:
    """The model of a checkpoint folder, in float32."""
    config = TinyConfig.read(json.loads((folder / "config.json").read_text("utf-8")))
    model = TinyHybrid(config)
    stored = {name: tensor.float() for name, tensor in load_file(str(folder / "model.safetensors")).items()}
    model.load_state_dict(stored)
    return model.eval()
