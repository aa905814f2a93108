"""A local copy of a checkpoint whose config extends the context by YaRN.

The copy has symbolic links to everything but config.json. A runtime override of the rope settings would drop
their other keys (interleaved sections, partial rotary factor) on multimodal configs; rewriting keeps them.
"""

from __future__ import annotations

import copy
import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from harness.errors import ConfigError
from harness.models.architecture import text_key
from harness.models.weights import read_json

CACHE_VARIABLE = "WMTP_CACHE"
_CONTEXT_KEY = "max_position_embeddings"
_ORIGINAL_KEY = "original_max_position_embeddings"


def cache_dir() -> Path:
    """Where copies lie: $WMTP_CACHE, else windowed-mtp in the user's cache."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "windowed-mtp"


def yarn_config(config: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """A config with YaRN of `factor` in its text part; applying it twice changes nothing more.

    Raises:
        ConfigError: a factor of 1 or less, no context length to extend, or another rope scaling in place.
    """
    if not factor > 1:
        raise ConfigError(f"yarn_factor={factor} must be above 1, or null for no YaRN")
    new = copy.deepcopy(dict(config))
    nested = text_key(new)
    text: dict[str, Any] = new if nested is None else new[nested]
    key = "rope_parameters" if isinstance(text.get("rope_parameters"), dict) else "rope_scaling"
    rope = dict(text.get(key) or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "yarn":
        original = rope.get(_ORIGINAL_KEY)
        if original is None or float(rope.get("factor", 0)) != float(factor):
            raise ConfigError(
                f"the checkpoint already carries YaRN of factor {rope.get('factor')}: set yarn_factor "
                "to that, or to null to serve it as it is"
            )
    elif kind not in {"default", "mrope"}:
        raise ConfigError(
            f"the checkpoint uses rope type {kind}, which YaRN cannot replace: set yarn_factor to null"
        )
    else:
        original = text.get(_CONTEXT_KEY)
    if not isinstance(original, int) or original <= 0:
        raise ConfigError(f"config.json names no {_CONTEXT_KEY}: YaRN has nothing to extend")
    rope.pop("type", None)
    rope |= {"rope_type": "yarn", "factor": float(factor), _ORIGINAL_KEY: original}
    text[key] = rope
    text[_CONTEXT_KEY] = int(original * factor)
    return new


def yarn_copy(directory: Path, factor: float, fingerprint: str, cache: Path | None = None) -> Path:
    """The directory of the copy, made on the first call; concurrent calls end with the same one.

    Raises:
        ConfigError: the config cannot be extended or the cache not be written.
    """
    body = orjson.dumps(
        yarn_config(read_json(directory / "config.json"), factor),
        option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS,
    )
    parent = (cache or cache_dir()) / "models"
    # The source's path is part of the name: two equal checkpoints must not replace each other's links.
    place = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:8]
    final = parent / f"{fingerprint}-yarn{factor:g}-{place}"
    if _is_complete(final, directory, body):
        return final
    scratch = parent / f".{final.name}.{secrets.token_hex(4)}.tmp"
    try:
        scratch.mkdir(parents=True)
        for source in sorted(directory.iterdir()):
            if source.name != "config.json" and not source.name.startswith("."):
                (scratch / source.name).symlink_to(source.resolve())
        (scratch / "config.json").write_bytes(body)
        _put_in_place(scratch, final, directory, body)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise ConfigError(
            f"cannot write the YaRN copy to {final} ({error.strerror}): set {CACHE_VARIABLE} to a "
            "writable folder"
        ) from error
    return final


def _put_in_place(scratch: Path, final: Path, directory: Path, body: bytes) -> None:
    for _ in range(3):
        try:
            scratch.rename(final)  # replaces nothing but an empty folder
        except OSError:
            if _is_complete(final, directory, body):  # another process was faster
                shutil.rmtree(scratch, ignore_errors=True)
                return
            stale = final.with_name(f".{final.name}.{secrets.token_hex(4)}.old")
            final.rename(stale)
            shutil.rmtree(stale, ignore_errors=True)
        else:
            return
    raise OSError(None, "another process keeps changing it", str(final))


def _is_complete(copy_dir: Path, directory: Path, body: bytes) -> bool:
    """Whether the copy has this config and a working link to each file of the source."""
    try:
        if (copy_dir / "config.json").read_bytes() != body:
            return False
    except OSError:
        return False
    wanted = {p.name for p in directory.iterdir() if not p.name.startswith(".")}
    present = {p.name for p in copy_dir.iterdir()}
    return wanted == present and all(
        (copy_dir / name).resolve() == (directory / name).resolve() for name in wanted - {"config.json"}
    )
