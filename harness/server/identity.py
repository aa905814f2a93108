"""Whether the model of a running server is the checkpoint of the points, by what the server says of it.

What it does not say differs from nothing: folders of one checkpoint lie anywhere, and SGLang tells of a
quantisation only where it was asked for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from harness.models.architecture import text_config
from harness.printable import printable
from harness.server.spec import ServerSpec

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})(?:/|$)")


def model_differences(spec: ServerSpec, reported: Mapping[str, Any]) -> Iterator[str]:
    """How the server's model differs from a spec's, each difference as a phrase.

    Args:
        reported: the answers to /server_info and /model_info in one, the latter's last: a server that took
            other weights tells there.
    """
    yield from _other_name(spec, reported)
    yield from _other_revision(spec, reported)
    config = _config(spec.model_path)
    if config:
        yield from _other_architecture(config, reported)
        yield from _other_precision(spec, config, reported)


def _config(model_path: str) -> Mapping[str, Any]:
    try:
        config = orjson.loads((Path(model_path) / "config.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return config if isinstance(config, dict) else {}


def _other_name(spec: ServerSpec, reported: Mapping[str, Any]) -> Iterator[str]:
    said = [reported.get(name) for name in ("model_path", "served_model_name")]
    theirs = {_last(name) for name in said if isinstance(name, str) and name}
    ours = {_last(name) for name in (*spec.model_names, spec.model_path)}
    if spec.model_names and theirs and not theirs & ours:
        name = spec.model_names[0]
        yield (
            f"its model is {printable(str(said[0] or said[1]))}, not {name}: choose model=, or where it is "
            f"the same checkpoint start it with --served-model-name {name}"
        )


def _other_revision(spec: ServerSpec, reported: Mapping[str, Any]) -> Iterator[str]:
    ours = _SNAPSHOT.search(spec.model_path)
    lies = _SNAPSHOT.search(str(reported.get("model_path")))
    theirs = lies[1] if lies else reported.get("revision")
    if ours and isinstance(theirs, str) and _COMMIT.fullmatch(theirs) and theirs != ours[1]:
        yield f"its model's revision is {theirs}, not {ours[1]}"


def _other_architecture(config: Mapping[str, Any], reported: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = config.get("architectures"), reported.get("architectures")
    if not (isinstance(ours, list) and isinstance(theirs, list) and ours and theirs):
        return
    # The engine may rename a class to the one that serves it, not the family.
    same_family = reported.get("model_type") in (None, config.get("model_type"))
    if not same_family and not set(map(str, ours)) & set(map(str, theirs)):
        yield f"its model is a {printable(str(theirs[0]))}, not a {printable(str(ours[0]))}"


def _other_precision(
    spec: ServerSpec, config: Mapping[str, Any], reported: Mapping[str, Any]
) -> Iterator[str]:
    text = text_config(config)
    quantised = "quantization_config" in config or "quantization_config" in text
    asked = any(word.startswith("--quantization") for word in spec.extra_arguments)
    theirs = reported.get("quantization")
    if isinstance(theirs, str) and theirs not in ("", "none") and not quantised and not asked:
        yield f"its weights are quantised ({printable(theirs)}), those of {spec.model_path} are not"
    said = next(
        (c.get(name) for c in (text, config) for name in ("dtype", "torch_dtype") if c.get(name)), None
    )
    # Of float32 the engine makes a half precision of its own choice.
    if reported.get("dtype") == "auto" and said in ("bfloat16", "float16") and said != spec.dtype:
        yield f"its dtype is auto, which is {said} for this checkpoint, not {spec.dtype}"


def _last(name: str) -> str:
    """The part of a path, hub id or cached snapshot that names a model."""
    parts = [part for part in name.removeprefix("package:").split("/") if part]
    if len(parts) > 2 and parts[-2] == "snapshots":
        parts = parts[-3].split("--")
    return (parts or [""])[-1].partition("@")[0].lower()
