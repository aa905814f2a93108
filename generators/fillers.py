"""Filler of haystacks: seeded prose, and sentences that imitate needles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from generators.lexicon import Lexicon
from generators.pieces import Ids, Rows
from generators.prose import draw_sentences, grammar
from generators.rng import Stream
from generators.tokenizer import Tokenizer

_BATCH = 1024
_FIRST_BATCH, _LARGEST_BATCH = 64, 8192


@dataclass(frozen=True)
class UnitTable:
    """Many short pieces and their ids."""

    texts: NDArray[np.object_]
    rows: Rows

    @classmethod
    def of(cls, tokenizer: Tokenizer, pieces: list[str]) -> UnitTable:
        """Tokenise each piece once."""
        return cls.of_rows(pieces, tokenizer.piece_rows(pieces))

    @classmethod
    def of_rows(cls, pieces: list[str], rows: Rows) -> UnitTable:
        """A table of pieces whose ids are known."""
        return cls(np.asarray(pieces, dtype=object), rows)

    @property
    def count(self) -> NDArray[np.int64]:
        """Tokens of each piece."""
        return self.rows.count

    def render(self, picks: NDArray[np.int64]) -> tuple[str, Ids]:
        """Text and ids of the picked pieces, one after the other."""
        return "".join(self.texts[picks].tolist()), self.rows.take(picks)


@dataclass(frozen=True)
class UnitBlock:
    """Sentences made of units: sentence i is `picks[bounds[i]:bounds[i + 1]]`."""

    table: UnitTable
    picks: NDArray[np.int64]
    bounds: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Tokens of each sentence."""
        if len(self.bounds) < 2:
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(self.table.count[self.picks], self.bounds[:-1])

    def render(self, start: int, stop: int) -> tuple[str, Ids]:
        """Text and ids of sentences start..stop-1."""
        return self.table.render(self.picks[self.bounds[start] : self.bounds[stop]])

    def first(self, room_tokens: int) -> UnitBlock:
        """As many of the sentences, from the first, as fit."""
        fits = int(np.searchsorted(np.cumsum(self.counts), max(room_tokens, 0), side="right"))
        return UnitBlock(self.table, self.picks[: self.bounds[fits]], self.bounds[: fits + 1])


class Prose:
    """The package's own sentences, none of which comes twice except by rare chance."""

    def __init__(self, tokenizer: Tokenizer, stream: Stream) -> None:
        self._tokenizer, self._stream = tokenizer, stream

    def take(self, room_tokens: int) -> UnitBlock:
        """As many sentences as fit in `room_tokens`."""
        table = self._tokenizer.cached("prose", lambda: UnitTable.of(self._tokenizer, list(grammar().units)))
        chunks: list[NDArray[np.int64]] = []
        lengths: list[NDArray[np.int64]] = []
        tokens = 0
        size = _FIRST_BATCH
        while tokens < room_tokens:
            # Batches do not depend on the room, so that a longer text begins like a shorter one.
            picks, length = draw_sentences(self._stream, size)
            size = min(2 * size, _LARGEST_BATCH)
            chunks.append(picks)
            lengths.append(length)
            tokens += int(table.count[picks].sum())
        picks = np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.int64)
        bounds = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *lengths]))
        return UnitBlock(table, picks, bounds).first(room_tokens)


class Pattern:
    """Sentences of one pattern with different words in its slots; each word is used at most once in a text.

    Args:
        pattern: words and slot numbers, such as (" For", 0, " take", 1); a slot holds a space and a word.
        rows: the words of all slots, sentence by sentence.
    """

    def __init__(
        self, tokenizer: Tokenizer, pattern: Sequence[str | int], rows: Iterable[Sequence[str]]
    ) -> None:
        self._pattern, self._rest = pattern, iter(rows)
        fixed = [item for item in pattern if isinstance(item, str)]
        self._lexicon = Lexicon(tokenizer)
        self._fixed, self._fixed_tokens = len(fixed), int(self._lexicon.append(fixed).count.sum())
        self._slots = len(pattern) - len(fixed)
        self._tokens = 0

    def take(self, room_tokens: int) -> UnitBlock:
        """As many sentences as fit in `room_tokens`; all of them where more would fit."""
        while self._tokens < room_tokens and (more := list(islice(self._rest, self._expected(room_tokens)))):
            words = self._lexicon.append([word for row in more for word in row])
            self._tokens += int(words.count.sum()) + len(more) * self._fixed_tokens
        count = self._count
        picks = np.empty((count, len(self._pattern)), dtype=np.int64)
        first_slot = self._fixed + self._slots * np.arange(count)
        fixed = iter(range(self._fixed))
        for column, item in enumerate(self._pattern):
            picks[:, column] = next(fixed) if isinstance(item, str) else first_slot + item
        bounds = np.arange(count + 1) * len(self._pattern)
        table = UnitTable.of_rows(self._lexicon.texts, self._lexicon.rows)
        return UnitBlock(table, picks.ravel(), bounds).first(room_tokens)

    @property
    def _count(self) -> int:
        return (len(self._lexicon) - self._fixed) // self._slots

    def _expected(self, room_tokens: int) -> int:
        """About how many more sentences fit; many are tokenised at once, which is faster."""
        if not self._count:
            return _BATCH
        return int((room_tokens - self._tokens) * self._count / self._tokens * 1.01) + 16
