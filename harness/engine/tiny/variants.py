"""Altered copies of the tiny checkpoint, for tests of servers and of checks: `VARIANTS` says which.

`python -m harness.engine.tiny.variants NAME DIR` writes one.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from harness.engine.tiny import checkpoint_path
from harness.engine.tiny.config import TinyConfig
from harness.engine.tiny.export import weights, write_model
from harness.engine.tiny.initialise import initialise
from harness.engine.tiny.looking_back import INSIDE_PLACES, OUTSIDE_PLACES, Tensors, looking_back
from harness.engine.tiny.model import TinyHybrid
from harness.errors import ConfigError

_DRAFT_PREFIX = "mtp."
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def _unchanged(config: TinyConfig, tensors: Tensors, seed: int) -> tuple[TinyConfig, Tensors]:
    return config, tensors


def _without_mtp(config: TinyConfig, tensors: Tensors, seed: int) -> tuple[TinyConfig, Tensors]:
    return config, {name: value for name, value in tensors.items() if not name.startswith(_DRAFT_PREFIX)}


def _fresh(config: TinyConfig, seed: int) -> Tensors:
    model = TinyHybrid(config)
    initialise(model, seed)
    return weights(model, "float32")


def _random_mtp(config: TinyConfig, tensors: Tensors, seed: int) -> tuple[TinyConfig, Tensors]:
    fresh = _fresh(config, seed)
    return config, {
        name: fresh[name] if name.startswith(_DRAFT_PREFIX) else value for name, value in tensors.items()
    }


def _nan(config: TinyConfig, tensors: Tensors, seed: int) -> tuple[TinyConfig, Tensors]:
    # One broken row of the output head makes every softmax NaN and leaves the states finite.
    head = tensors["lm_head.weight"].clone()
    head[0] = float("nan")
    return config, {**tensors, "lm_head.weight": head}


def _flat_mtp(config: TinyConfig, tensors: Tensors, seed: int) -> tuple[TinyConfig, Tensors]:
    # The norm's factor is one plus its weight: queries become zero, every score equal.
    name = "mtp.layers.0.self_attn.q_norm.weight"
    return config, {**tensors, name: torch.full_like(tensors[name], -1.0)}


def _looking_back(places: int) -> Callable[[TinyConfig, Tensors, int], tuple[TinyConfig, Tensors]]:
    """A draft that attends to one distance alone and proposes the token that it finds there."""

    def change(config: TinyConfig, tensors: Tensors, seed: int) -> tuple[TinyConfig, Tensors]:
        return config, {**tensors, **looking_back(config, tensors, places)}

    return change


def _moe(config: TinyConfig, tensors: Tensors, seed: int) -> tuple[TinyConfig, Tensors]:
    config = replace(config, num_experts=8)
    return config, _fresh(config, seed)


_CHANGES: dict[str, tuple[str, Callable[[TinyConfig, Tensors, int], tuple[TinyConfig, Tensors]]]] = {
    "float32": ("float32", _unchanged),
    "without_mtp": ("bfloat16", _without_mtp),
    "random_mtp": ("bfloat16", _random_mtp),
    "flat_mtp": ("bfloat16", _flat_mtp),
    "inside_mtp": ("bfloat16", _looking_back(INSIDE_PLACES)),
    "outside_mtp": ("bfloat16", _looking_back(OUTSIDE_PLACES)),
    "nan": ("bfloat16", _nan),
    "moe": ("bfloat16", _moe),
    "moe_float32": ("float32", _moe),
}

VARIANTS = {
    "float32": "the same numbers stored as float32",
    "without_mtp": "no draft weights, while config.json still announces a draft layer",
    "random_mtp": "an untrained draft layer",
    "flat_mtp": "a draft layer that attends evenly, so that the weight outside a window is known",
    "inside_mtp": f"a draft layer that attends {INSIDE_PLACES} places back and says what stands there",
    "outside_mtp": f"the same, {OUTSIDE_PLACES} places back: outside the tiny model's usual window",
    "nan": "NaN in the output head",
    "moe": "a mixture of 8 experts with random weights",
    "moe_float32": "`moe` stored as float32",
}


def write_variant(name: str, folder: Path, *, source: Path | None = None, seed: int = 1) -> Path:
    """Write variant `name` as a complete checkpoint to `folder`, which is returned.

    Args:
        source: the checkpoint it is made from; the shipped one if None.
        seed: of random weights.

    Raises:
        ConfigError: there is no such variant, or the shipped checkpoint is incomplete.
    """
    if name not in _CHANGES:
        raise ConfigError(f"There is no variant {name!r} of the tiny model: choose {', '.join(VARIANTS)}.")
    source = checkpoint_path() if source is None else source
    dtype, change = _CHANGES[name]
    settings = json.loads((source / "config.json").read_text("utf-8"))
    stored: Tensors = load_file(str(source / "model.safetensors"))
    config, tensors = change(TinyConfig.read(settings), stored, seed)
    ids = {"bos_id": settings["bos_token_id"], "eos_id": settings["eos_token_id"]}
    write_model(config, _as_stored(tensors, dtype), folder, dtype=dtype, **ids)
    for file in _TOKENIZER_FILES:
        shutil.copyfile(source / file, folder / file)
    return folder


def _as_stored(tensors: Tensors, dtype: str) -> Tensors:
    wide = torch.float32
    kept = {name: wide if name.endswith("A_log") else getattr(torch, dtype) for name in tensors}
    return {name: value.to(kept[name]).contiguous() for name, value in tensors.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m harness.engine.tiny.variants", description=__doc__)
    parser.add_argument(
        "name", choices=sorted(VARIANTS), help="; ".join(f"{k}: {v}" for k, v in VARIANTS.items())
    )
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args(arguments)
    print(write_variant(chosen.name, chosen.folder))  # noqa: T201


if __name__ == "__main__":
    main()
