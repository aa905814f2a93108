"""What a tokenizer.json says, and the tokenizer made of it for prompts.

A prompt's frame and its documents meet in one text, but only the frame's special tokens may become ids of
their own. So every added token is renamed to a private marker, with which the frame is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers

from harness.errors import InputError

MARK_OPEN, MARK_CLOSE = "\ue000", "\ue001"
SEPARATOR, GAP = "\ue004", "\ue005"


def parse(path: str, source: bytes) -> dict[str, Any]:
    """The parsed tokenizer.json.

    Args:
        path: what to call it in errors.

    Raises:
        InputError: it is none.
    """
    try:
        spec = json.loads(source)
    except ValueError as error:
        pointer = source.startswith(b"version https://git-lfs")
        why = "a Git LFS pointer; fetch the file with `git lfs pull`" if pointer else f"not JSON ({error})"
        raise InputError(f"The tokenizer at {path} is {why}.") from error
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict) or "vocab" not in spec["model"]:
        raise InputError(f"The file at {path} is not a Hugging Face tokenizer.json: it has no vocabulary.")
    return spec


def added_tokens(spec: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, int]:
    """Added tokens by content; `tokenizer_config.json` may know some that tokenizer.json lacks."""
    added = {token["content"]: int(token["id"]) for token in spec.get("added_tokens") or []}
    vocabulary = spec["model"]["vocab"]
    if not isinstance(vocabulary, dict):
        vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
    taken = set(vocabulary.values())
    for content, number in added.items():
        if vocabulary.get(content, number) != number or (content not in vocabulary and number in taken):
            raise InputError(
                f"The tokenizer contradicts itself: its added token {content!r} has the id {number}, which"
                " its vocabulary gives otherwise."
            )
    for number_text, token in (config.get("added_tokens_decoder") or {}).items():
        added.setdefault(token["content"], int(number_text))
    return {content: number for content, number in added.items() if content}


def unknown_id(spec: Mapping[str, Any]) -> int | None:
    """The id that stands for what the vocabulary lacks, if there is one."""
    model = spec["model"]
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    vocab = model["vocab"]
    return vocab.get(model.get("unk_token")) if isinstance(vocab, dict) else None


def _without_gaps(model: Mapping[str, Any]) -> dict[str, Any]:
    """The model with unused ids filled: a new token's id is the size of the vocabulary."""
    vocabulary = model["vocab"]
    if not isinstance(vocabulary, dict):
        return dict(model)
    used = set(vocabulary.values())
    gaps = {f"{GAP}{number}{GAP}": number for number in range(max(used, default=0)) if number not in used}
    return {**model, "vocab": {**vocabulary, **gaps}}


def with_markers(
    spec: Mapping[str, Any], added: Mapping[str, int]
) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
    """The tokenizer with its added tokens renamed, and their real ids by the ids of the markers."""
    flags = {token["content"]: token for token in spec.get("added_tokens") or []}
    default = {"single_word": False, "lstrip": False, "rstrip": False}
    markers = {f"{MARK_OPEN}{number}{MARK_CLOSE}": content for content, number in added.items()}
    # Limits or padding saved with a tokenizer must not cut or stretch prompts.
    model = _without_gaps(spec["model"])
    bare = {
        **spec,
        "model": model,
        "added_tokens": [],
        "truncation": None,
        "padding": None,
        "post_processor": None,
    }
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(bare))
    tokenizer.add_special_tokens(
        [
            tokenizers.AddedToken(
                marker, normalized=False, **{name: flags.get(content, default)[name] for name in default}
            )
            for marker, content in markers.items()
        ]
    )
    tokenizer.add_special_tokens([tokenizers.AddedToken(SEPARATOR, normalized=False)])
    vocabulary = tokenizer.get_vocab()
    return tokenizer, {vocabulary[marker]: added[content] for marker, content in markers.items()}


def wrapping_ids(spec: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the tokenizer itself puts around a text (BOS, EOS) where no chat template does."""
    if not spec.get("post_processor"):
        return (), ()
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps({**spec, "truncation": None, "padding": None}))
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a").ids
    start = next((i for i in range(len(full) - len(bare) + 1) if full[i : i + len(bare)] == bare), 0)
    return tuple(full[:start]), tuple(full[start + len(bare) :])
