"""Ids of many pieces from one run of the tokenizer over them, cut by the bytes that tokens stand for.

In a byte-level BPE vocabulary each token stands for a fixed number of bytes, and the tokens of a text are its
bytes in order. So pieces can be tokenised as the text they make up and told apart afterwards, provided that
pre-tokens start at the space that each piece begins with. Whether a tokenizer is of this kind is read from
its tokenizer.json and tried out; every cut is checked to fall between two tokens.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

Ids = NDArray[np.uint32]
# A space between non-spaces; pre-tokenisers always split before it.
SPACE = re.compile(r"(?<=\S) (?=\S)")
_TRIED = "azAZ09.,:;!?-_'\"`()[]{}<>/\\|@#$%^&*+=~é中Ω\u0301☃😀"


@dataclass(frozen=True)
class Rows:
    """Ragged rows of ids, one after the other: row i is `flat[start[i]:start[i] + count[i]]`."""

    flat: Ids
    start: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, flat: Ids, count: NDArray[np.int64]) -> Rows:
        """Rows of these lengths."""
        return cls(flat, np.cumsum(count) - count, count)

    @classmethod
    def of_list(cls, rows: Sequence[Ids]) -> Rows:
        """Rows from a list of them."""
        flat = np.concatenate(rows) if rows else np.zeros(0, dtype=np.uint32)
        return cls.of(flat, np.asarray([len(row) for row in rows], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.count)

    def to_list(self) -> list[Ids]:
        """Each row as a view."""
        ends = self.start + self.count
        return [self.flat[a:b] for a, b in zip(self.start.tolist(), ends.tolist(), strict=True)]

    def take(self, picks: NDArray[np.int64]) -> Ids:
        """The ids of the picked rows, one after the other."""
        counts = self.count[picks]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        shift = np.repeat(self.start[picks] - (ends - counts), counts)
        ids: Ids = self.flat[shift + np.arange(total)]
        return ids


def token_bytes(
    spec: Mapping[str, Any], added: Collection[str], tokenizer: tokenizers.Tokenizer, size: int
) -> NDArray[np.int64] | None:
    """How many bytes of text each id stands for; 0 for ids that plain text should not give.

    Args:
        spec: the parsed tokenizer.json.
        added: contents of its added tokens.
        tokenizer: the tokenizer itself.
        size: how many ids there are.

    Returns:
        Shape (size,), or None for a tokenizer that is no byte-level BPE splitting before spaces.
    """
    model = spec["model"]
    if not isinstance(model["vocab"], dict):
        return None
    spelled = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if model.get("type", "BPE") != "BPE" or any(model.get(name) for name in spelled):
        return None
    if (spec.get("normalizer") or {"type": "NFC"}).get("type") != "NFC":
        return None
    steps = _steps(spec.get("pre_tokenizer"))
    if not steps or not _is_byte_level(steps) or not _splits_before_spaces(tokenizer):
        return None
    vocabulary: dict[str, int] = model["vocab"]
    lengths = np.zeros(size, dtype=np.int64)
    lengths[list(vocabulary.values())] = [len(token) for token in vocabulary]
    unwanted = {*added, model.get("unk_token")}
    lengths[[i for token, i in vocabulary.items() if token in unwanted]] = 0
    return lengths


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer.get("type") != "Sequence":
        return [pre_tokenizer]
    return [step for each in pre_tokenizer["pretokenizers"] for step in _steps(each)]


def _is_byte_level(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Whether steps only split text, and the last one writes its bytes as letters."""
    *splits, last = steps
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
        return False
    return all(s.get("type") in {"Split", "Digits"} and s.get("behavior") != "Removed" for s in splits)


def _splits_before_spaces(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether a pre-token starts at each single space of a text that has all kinds of pairs around them."""
    text = " ".join(f"{a} {b}" for a in _TRIED for b in _TRIED)
    starts = {start for _, (start, _) in tokenizer.pre_tokenizer.pre_tokenize_str(text)}
    return {match.start() for match in SPACE.finditer(text)} <= starts


def stand_alone(pieces: Sequence[str]) -> bool:
    """Whether each piece begins with one space and ends with no space."""
    return all(
        len(piece) > 1 and piece[0] == " " and not piece[1].isspace() and not piece[-1].isspace()
        for piece in pieces
    )


def byte_ends(pieces: Sequence[str], start: int) -> NDArray[np.int64] | None:
    """Where each of the pieces ends, in bytes, the first of them beginning at `start`; None if not NFC."""
    if all(map(str.isascii, pieces)):
        sizes = list(map(len, pieces))
    elif unicodedata.is_normalized("NFC", "".join(pieces)):
        sizes = [len(piece.encode()) for piece in pieces]
    else:
        return None
    return start + np.cumsum(np.asarray(sizes, dtype=np.int64))


def cut(
    raw: Ids, lengths: NDArray[np.int64], start: int, ends: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Places in `raw` at which pieces begin, and its length.

    Args:
        raw: ids of a text.
        lengths: bytes of each id, 0 for ids that should not be there.
        start: bytes before the first piece.
        ends: bytes up to the end of each piece.

    Returns:
        Shape (pieces + 1,), or None where a piece does not begin at a token.
    """
    sizes = lengths[raw]
    reached = np.cumsum(sizes)
    wanted = np.concatenate([np.asarray([start], dtype=np.int64), ends])
    places = np.searchsorted(reached, wanted)
    if not sizes.all() or not len(reached) or reached[-1] != wanted[-1]:
        return None
    return places + 1 if bool((reached[places] == wanted).all()) else None
