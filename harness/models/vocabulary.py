"""Whether a checkpoint's tokenizer can be its own: found from its files, before a server starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.models.architecture import text_config
from harness.models.weights import read_json

# Models pad their vocabulary by a few rows, to a multiple that suits the hardware; never by this much.
_LEAST_SHARE = 0.8


def tokenizer_problem(directory: Path, config: Mapping[str, Any]) -> str:
    """Why the tokenizer beside a checkpoint cannot make its prompts, in one sentence; empty where it can.

    Args:
        config: the checkpoint's parsed config.json; one that names no vocab_size is not compared.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        return (
            f"{directory} holds no tokenizer.json: fetch the checkpoint's tokenizer files, or convert the "
            "tokenizer to a Hugging Face fast one"
        )
    try:
        ids = _ids(path, read_json(path))
        for name in ("tokenizer_config.json", "chat_template.json"):
            if (directory / name).is_file():
                read_json(directory / name)
    except ConfigError as error:
        return f"{error}; fetch the checkpoint's tokenizer files again"
    size = text_config(config).get("vocab_size")
    if not isinstance(size, int) or size < 1:
        return ""
    if max(ids) >= size:
        return (
            f"{path} gives ids up to {max(ids)}, the model of {directory / 'config.json'} has {size} tokens: "
            "it is another model's tokenizer; put the checkpoint's own there"
        )
    if len(ids) < _LEAST_SHARE * size:
        return (
            f"{path} knows {len(ids)} tokens, the model of {directory / 'config.json'} has {size}: it is "
            "another model's tokenizer; put the checkpoint's own there"
        )
    return ""


def _ids(path: Path, spec: Mapping[str, Any]) -> set[int]:
    """Every id of a tokenizer.json; its vocabulary is a mapping, or a list in order of the ids."""
    model, added = spec.get("model"), spec.get("added_tokens") or []
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    numbers: Iterable[Any] | None = None
    if isinstance(vocabulary, dict):
        numbers = vocabulary.values()
    elif isinstance(vocabulary, list):
        numbers = range(len(vocabulary))
    try:
        ids = {int(number) for number in numbers or ()} | {int(token["id"]) for token in added}
    except (KeyError, TypeError, ValueError):
        ids = set()
    if not ids:
        raise ConfigError(f"{path} is no Hugging Face tokenizer: it has no vocabulary")
    return ids
