"""The one random generator of this package: SplitMix64, counter based, written out here.

Word i of a stream with key k is mix(k + (i + 1) * 0x9E3779B97F4A7C15) modulo 2**64, where mix is the
finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014):

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9
    z = (z ^ z >> 27) * 0x94D049BB133111EB
    z =  z ^ z >> 31

The key is the first eight bytes (little endian) of the SHA-256 of the labels joined by 0x1F. An integer below
n is (word >> 32) * n >> 32; its bias is below n / 2**32. Nothing depends on the random streams of Python or
numpy, so the same labels give the same values on any version and platform.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.errors import InputError

T = TypeVar("T")

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MUL_1 = np.uint64(0xBF58476D1CE4E5B9)
_MUL_2 = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


class Stream:
    """An endless, named sequence of 64-bit words; equal labels give equal sequences."""

    def __init__(self, *labels: int | str) -> None:
        digest = hashlib.sha256("\x1f".join(str(label) for label in labels).encode()).digest()
        self._labels = labels
        self._key = np.uint64(int.from_bytes(digest[:8], "little"))
        self._used = 0

    def child(self, *labels: int | str) -> Stream:
        """An independent stream, not affected by how much of this one was used."""
        return Stream(*self._labels, *labels)

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` raw words."""
        index = np.arange(self._used + 1, self._used + count + 1, dtype=np.uint64)
        self._used += count
        z = self._key + index * _STEP
        z = (z ^ (z >> _30)) * _MUL_1
        z = (z ^ (z >> _27)) * _MUL_2
        return z ^ (z >> _31)

    def below(self, limit: int | NDArray[Any], count: int) -> NDArray[np.int64]:
        """`count` integers in [0, limit); `limit` is one number up to 2**32 or an array of `count`."""
        limits = np.asarray(limit, dtype=np.uint64)
        return (((self.words(count) >> _32) * limits) >> _32).astype(np.int64)

    def integer(self, low: int, high: int) -> int:
        """One integer in [low, high], both ends included."""
        return low + int(self.below(high - low + 1, 1)[0])

    def choice(self, items: Sequence[T]) -> T:
        """One of `items`."""
        return items[int(self.below(len(items), 1)[0])]

    def permutation(self, count: int) -> NDArray[np.int64]:
        """The numbers 0..count-1 in random order."""
        return np.argsort(self.words(count), kind="stable").astype(np.int64)

    def distinct(self, limit: int, count: int) -> list[int]:
        """`count` different integers of [0, limit), in random order.

        Raises:
            InputError: fewer than `count` exist.
        """
        if count > limit:
            raise InputError(f"{count:,} different items are asked for, but only {limit:,} exist.")
        if limit <= 4 * count + 1024:
            kept: list[int] = self.permutation(limit)[:count].tolist()
            return kept
        chosen: dict[int, None] = {}
        while len(chosen) < count:
            for i in self.below(limit, count - len(chosen)).tolist():
                chosen.setdefault(i)
        return list(chosen)

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different places of `items`, in random order."""
        return [items[i] for i in self.distinct(len(items), count)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """`items` in random order."""
        return [items[i] for i in self.permutation(len(items)).tolist()]
