"""Which tensors a checkpoint really holds: safetensors headers and indexes, no weights loaded."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from harness.errors import ConfigError

INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_LFS_POINTER = b"version https://git-lfs"
_MAX_HEADER_BYTES = 1 << 28
_SAMPLE_BYTES = 4096
_SAMPLES = 8


@dataclass(frozen=True)
class WeightFile:
    """One weight file: its tensors (name -> shape; empty for formats without a header) and a digest.

    The digest covers size, header and a few samples of the data: enough to tell two trainings of one
    architecture apart, cheap on a hundred gigabytes.
    """

    name: str
    size_bytes: int
    shapes: dict[str, tuple[int, ...]]
    digest: str


@dataclass(frozen=True)
class Weights:
    """All weight files of a checkpoint and the tensors its index promises."""

    files: tuple[WeightFile, ...]
    tensors: frozenset[str]

    @property
    def size_bytes(self) -> int:
        """Bytes of all weight files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 over all files, hex."""
        body = [(file.name, file.digest) for file in self.files]
        return hashlib.sha256(orjson.dumps(body)).hexdigest()


def read_weights(directory: Path) -> Weights:
    """Read the index and the headers of all weight files in a directory.

    Raises:
        ConfigError: no weights, a missing shard, a cut or foreign file, or an unreadable index.
    """
    weight_map = _weight_map(directory)
    if weight_map:
        names: Iterable[str] = set(weight_map.values())
    else:
        names = _loose_files(directory)
    files = tuple(_read_file(directory / name) for name in sorted(names))
    found = {tensor for file in files for tensor in file.shapes}
    # An index that names tensors its shards lack is wrong; the headers are what will be loaded.
    if found and weight_map:
        lacking = sorted(set(weight_map) - found)
        if lacking:
            raise ConfigError(
                f"{directory}: the weight index lists {len(lacking)} tensors that no shard holds "
                f"(such as {lacking[0]}): download the checkpoint again"
            )
    return Weights(files, frozenset(found or weight_map))


def _weight_map(directory: Path) -> dict[str, str]:
    for name in INDEX_FILES:
        path = directory / name
        if path.is_file():
            mapping = read_json(path).get("weight_map")
            if not isinstance(mapping, dict) or not all(isinstance(v, str) for v in mapping.values()):
                raise ConfigError(f"{path} holds no weight_map: download the checkpoint again")
            missing = sorted(shard for shard in set(mapping.values()) if not (directory / shard).is_file())
            if missing:
                raise ConfigError(
                    f"{directory} lacks {len(missing)} of its weight files (such as {missing[0]}): "
                    "finish the download"
                )
            return mapping
    return {}


def _loose_files(directory: Path) -> list[str]:
    for pattern in ("*.safetensors", "*.bin"):
        found = [p.name for p in directory.glob(pattern) if p.is_file() and p.name != "training_args.bin"]
        if found:
            return found
    raise ConfigError(f"{directory} holds no weights (*.safetensors): finish the download or fix model.path")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ConfigError: unreadable, not JSON, or not an object.
    """
    try:
        value = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        hint = "it is a Git LFS pointer: run `git lfs pull`" if _is_pointer(path) else str(error)
        raise ConfigError(f"{path} is not JSON: {hint}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, not a JSON object")
    return value


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_LFS_POINTER)) == _LFS_POINTER


def _read_file(path: Path) -> WeightFile:
    try:
        size = path.stat().st_size
        if _is_pointer(path):
            raise ConfigError(f"{path} is a Git LFS pointer, not weights: run `git lfs pull` in its folder")
        header, data_start = _header(path, size) if path.suffix == ".safetensors" else (b"", 0)
        shapes = _shapes(path, header, size - data_start) if header else {}
        digest = hashlib.sha256(struct.pack("<Q", size) + hashlib.sha256(header).digest())
        with path.open("rb") as file:
            for i in range(_SAMPLES):
                file.seek(data_start + (size - data_start) * i // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return WeightFile(path.name, size, shapes, digest.hexdigest())


def safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """A safetensors file's entries by tensor, and where its data begins.

    Raises:
        ConfigError: the file is cut or damaged.
    """
    try:
        size = path.stat().st_size
        header, data_start = _header(path, size)
        _shapes(path, header, size - data_start)  # checks every entry
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    entries: dict[str, Any] = orjson.loads(header)
    entries.pop("__metadata__", None)
    return entries, data_start


def _header(path: Path, size: int) -> tuple[bytes, int]:
    """The JSON header of a safetensors file and where its data begins: 8 bytes of length come first."""
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _MAX_HEADER_BYTES
        header = file.read(length) if length < _MAX_HEADER_BYTES else b""
    if len(header) != length or 8 + length > size:
        raise ConfigError(f"{path} is no complete safetensors file: download it again")
    return header, 8 + length


def _shapes(path: Path, header: bytes, data_bytes: int) -> dict[str, tuple[int, ...]]:
    try:
        entries: dict[str, Any] = orjson.loads(header)
        entries.pop("__metadata__", None)
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        shapes = {name: tuple(int(n) for n in entry["shape"]) for name, entry in entries.items()}
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ConfigError(f"{path} has a damaged safetensors header: download it again") from error
    if end > data_bytes:
        raise ConfigError(
            f"{path} is cut: {end} bytes of weights promised, {data_bytes} there; download it again"
        )
    return shapes
