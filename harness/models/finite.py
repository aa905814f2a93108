"""Weights that are no numbers, by a few samples: a failed conversion leaves whole tensors of NaN.

Only a sample that is nothing but NaN and infinities counts, and only of plain floating-point weights: scales
of a quantisation may hold odd values where they are never used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import ConfigError
from harness.models.weights import safetensors_header

_SAMPLE_BYTES = 2048
_MOST_TENSORS = 64
# dtype -> its integer of the same size, and the exponent bits: all set in a NaN or an infinity.
_EXPONENTS: Mapping[str, tuple[str, int]] = {
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
    "F32": ("<u4", 0x7F800000),
}


def without_numbers(files: Iterable[Path], *groups: Sequence[str]) -> list[str]:
    """Those of the named tensors whose sample holds no finite number, sorted; 64 of each group are looked at.

    Raises:
        ConfigError: a file cannot be read.
    """
    wanted: set[str] = set()
    for names in groups:
        step = -(-len(names) // _MOST_TENSORS) or 1
        wanted |= set(sorted(names)[::step])
    found: list[str] = []
    for path in files:
        if path.suffix == ".safetensors":
            entries, data_start = safetensors_header(path)
            found += _in_file(path, {n: entries[n] for n in wanted & set(entries)}, data_start)
    return sorted(found)


def _in_file(path: Path, entries: Mapping[str, Any], data_start: int) -> list[str]:
    found = []
    try:
        with path.open("rb") as file:
            for name, entry in entries.items():
                begin, end = entry["data_offsets"]
                if entry.get("dtype") in _EXPONENTS and name.endswith("weight") and end > begin:
                    file.seek(data_start + begin)
                    sample = file.read(min(_SAMPLE_BYTES, end - begin))
                    if _holds_no_number(sample, *_EXPONENTS[entry["dtype"]]):
                        found.append(name)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return found


def _holds_no_number(sample: bytes, kind: str, exponent: int) -> bool:
    whole = len(sample) // int(kind[2:]) * int(kind[2:])
    values: NDArray[Any] = np.frombuffer(sample[:whole], dtype=kind)
    return bool(values.size) and bool(((values & exponent) == exponent).all())
