"""A growing list of pieces of text with their ids, each tokenised once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from generators.pieces import SPACE, Ids, Rows, stand_alone
from generators.tokenizer import Tokenizer


class Lexicon:
    """Pieces and their ids by number.

    Attributes:
        texts: the pieces, in the order of their numbers.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.texts: list[str] = []
        self._tokenizer = tokenizer
        self._number: dict[str, int] = {}
        self._rows = Rows.of_list([])

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def rows(self) -> Rows:
        """The ids of all pieces so far."""
        return self._rows

    def append(self, pieces: Sequence[str]) -> Rows:
        """Add pieces, whether or not they are here already; their ids."""
        new = self._tokenizer.piece_rows(pieces)
        self.texts += pieces
        flat = np.concatenate([self._rows.flat, new.flat])
        self._rows = Rows.of(flat, np.concatenate([self._rows.count, new.count]))
        return new

    def numbers(self, pieces: Sequence[str]) -> NDArray[np.int64]:
        """The number of each piece, those added that are not here yet; not to be mixed with `append`."""
        known = len(self._number)
        number = self._number
        found = [number.setdefault(piece, len(number)) for piece in pieces]
        if len(number) > known:
            self.append(list(number)[known:])
        return np.asarray(found, dtype=np.int64)

    def long_rows(self, pieces: Sequence[str]) -> list[Ids]:
        """The ids of pieces that are many words each, each word tokenised once where spaces part tokens."""
        if not (pieces and self._tokenizer.splits_before_spaces and stand_alone(pieces)):
            return self._tokenizer.piece_ids(pieces)
        split = [SPACE.split(piece[1:]) for piece in pieces]
        picks = self.numbers([f" {word}" for words in split for word in words])
        ends = np.cumsum([len(words) for words in split])
        counts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.rows.count[picks])])[ends]
        return np.split(self.rows.take(picks), counts[:-1])
