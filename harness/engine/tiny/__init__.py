"""A very small Qwen3.5-style hybrid with a built-in draft layer: its training code and its checkpoint.

Importing this package loads neither torch nor SGLang, so that the launcher can ask for the path cheaply.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from harness.errors import ConfigError

_NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def checkpoint_path() -> Path:
    """Folder of the shipped checkpoint, as Hugging Face and SGLang load it.

    Raises:
        ConfigError: a file of it is missing from this installation.
    """
    folder = Path(str(files(__name__).joinpath("checkpoint")))
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"The tiny model at {folder} lacks {', '.join(missing)}: install the package again, or train it "
            f"with `python -m harness.engine.tiny.train --out {folder}`."
        )
    return folder
