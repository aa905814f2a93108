"""A digest of a draft head's weights, in full: two trainings of a head may differ in no sampled byte."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from harness.errors import ConfigError
from harness.models.weights import safetensors_header
from harness.models.yarn import cache_dir

WHOLE_BYTES = 4 << 30
"""Heads up to this size are read in full, larger ones by one part in sixteen."""
_STRIDE, _PART, _BLOCK = 1 << 20, 1 << 16, 1 << 24


def head_digest(files: Sequence[Path], tensors: Sequence[str]) -> str:
    """16 hex digits over the named tensors, however they are sharded; empty where no header names them.

    The digest is kept in the user's cache by the files' paths, sizes and times, so that a plan stays fast.

    Raises:
        ConfigError: a file cannot be read.
    """
    wanted = set(tensors)
    found: dict[str, tuple[Path, int, dict[str, Any]]] = {}
    for path in files:
        if wanted and path.suffix == ".safetensors":
            entries, start = safetensors_header(path)
            found |= {name: (path, start, entries[name]) for name in wanted & set(entries)}
    if not found:
        return ""
    try:
        kept = cache_dir() / "heads" / _cache_key(found)
        with contextlib.suppress(OSError):
            if text := kept.read_text():
                return text
        digest = _digest(found)
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from error
    scratch = kept.with_name(f".{kept.name}.{secrets.token_hex(4)}.tmp")
    with contextlib.suppress(OSError):  # without a cache it is read again the next time
        kept.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(digest)
        scratch.replace(kept)
    return digest


def _cache_key(found: dict[str, tuple[Path, int, dict[str, Any]]]) -> str:
    paths = sorted({path.resolve() for path, _, _ in found.values()})
    rows = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(orjson.dumps([rows, sorted(found)])).hexdigest()[:32]


def _digest(found: dict[str, tuple[Path, int, dict[str, Any]]]) -> str:
    sizes = (entry["data_offsets"][1] - entry["data_offsets"][0] for _, _, entry in found.values())
    whole = sum(sizes) <= WHOLE_BYTES
    digest = hashlib.sha256()
    for name, (path, start, entry) in sorted(found.items()):
        digest.update(orjson.dumps([name, entry.get("dtype"), entry["shape"]]))
        begin, end = (start + offset for offset in entry["data_offsets"])
        with path.open("rb") as file:
            _feed(digest, file, begin, end, whole)
    return digest.hexdigest()[:16]


def _feed(digest: Any, file: BinaryIO, begin: int, end: int, whole: bool) -> None:
    step, size = (_BLOCK, _BLOCK) if whole else (_STRIDE, _PART)
    for at in range(begin, end, step):
        file.seek(at, os.SEEK_SET)
        digest.update(file.read(min(size, end - at)))
