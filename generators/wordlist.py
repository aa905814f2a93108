"""Prompts that are a run of words, numbered or not, closed to an exact number of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from generators.assemble import Draft, by_count, combine, split_ask
from generators.fillers import UnitTable
from generators.rng import Stream
from generators.tokenizer import Ids, Tokenizer
from generators.words import invented_words
from harness.errors import InputError

# Closing words are told from the others by their length: no invented word of the texts has these.
_CLOSING_SYLLABLES = (1, 2, 4, 5, 7)
_CLOSING_ITEMS = 3
_MOST_CLOSING_ITEMS = 24
_NUMBERS_AT_ONCE = 8192


class WordRun:
    """Head and question around a run of words, and the words at its end that make the length exact.

    Args:
        numbered: whether each word follows its number in the list.
    """

    def __init__(self, tokenizer: Tokenizer, head: str, ask: str, stream: Stream, *, numbered: bool) -> None:
        self._tokenizer, self._head, self._numbered = tokenizer, head, numbered
        self._near, self._rest = split_ask(ask)
        self._head_ids = tokenizer.first_ids(head)
        self._rest_ids = tokenizer.last_ids([self._rest], after=":")[0]
        self._numbers: list[Ids] = tokenizer.cached("list numbers", list)
        self._words: dict[str, Ids] = {}
        drawn = (invented_words(stream.child(size), 24, size) for size in _CLOSING_SYLLABLES)
        self._pool = [word for words in drawn for word in words]
        plain = self._tokenizer.piece_ids([f" {word}" for word in self._pool])
        self._stock, self._plain = by_count(plain), plain
        self._endings = [word + dots for dots in ("", " .", " ..", " ...") for word in self._pool]
        self._final = tokenizer.separate_ids([f" {ending}{self._near}" for ending in self._endings])
        near_tokens = len(tokenizer.piece_ids([self._near], after="a")[0])
        self.fixed_tokens = len(self._head_ids) + near_tokens + len(self._rest_ids)

    def word_tokens(self, words: Sequence[str]) -> list[int]:
        """Tokens of each word, its space included."""
        new = [word for word in dict.fromkeys(words) if word not in self._words]
        self._words.update(zip(new, self._tokenizer.piece_ids([f" {word}" for word in new]), strict=True))
        return [len(self._words[word]) for word in words]

    def number_tokens(self, start: int, stop: int) -> int:
        """Tokens of the numbers of items start..stop-1, counted from 0; none where the run has no numbers."""
        if not self._numbered:
            return 0
        while len(self._numbers) < stop:
            first = len(self._numbers) + 1
            more = [f" {number}." for number in range(first, first + _NUMBERS_AT_ONCE)]
            self._numbers += self._tokenizer.piece_ids(more)
        return sum(map(len, self._numbers[start:stop]))

    def closing_tokens(self, items: int) -> int:
        """Room to leave for the closing words of a run of `items` words."""
        typical = sorted(map(len, self._plain))[len(self._plain) // 2]
        return _CLOSING_ITEMS * typical + self.number_tokens(items, items + _CLOSING_ITEMS)

    def finish(self, words: Sequence[str], target_tokens: int) -> Draft:
        """The prompt with these words in order, closed to `target_tokens`."""
        self.word_tokens(words)
        self.number_tokens(0, len(words))
        pieces: Iterable[Ids] = (self._words[word] for word in words)
        text = "".join(f" {word}" for word in words)
        if self._numbered:
            pairs = zip(self._numbers, pieces, strict=False)
            pieces = (ids for pair in pairs for ids in pair)
            text = "".join(f" {number}. {word}" for number, word in enumerate(words, 1))
        return self._close(text, np.concatenate([self._head_ids, *pieces]), len(words), target_tokens)

    def finish_units(self, table: UnitTable, picks: NDArray[np.int64], target_tokens: int) -> Draft:
        """The prompt with the picked units in order, closed to `target_tokens`; for runs without numbers."""
        text, ids = table.render(picks)
        return self._close(text, np.concatenate([self._head_ids, ids]), len(picks), target_tokens)

    def _close(self, body: str, ids: Ids, items: int, target_tokens: int) -> Draft:
        room = target_tokens - len(ids) - len(self._rest_ids)
        for length in range(1, _MOST_CLOSING_ITEMS):
            left = room - self.number_tokens(items, items + length)
            tried: set[int] = set()
            for final, final_ids in enumerate(self._final):
                # Equal counts combine alike, but for the rare case that the final word is also chosen.
                if final_ids is None or len(final_ids) in tried:
                    continue
                chosen = combine(self._stock, left - len(final_ids), length - 1)
                if chosen is None or final % len(self._pool) in chosen:
                    tried |= {len(final_ids)} if chosen is None else set()
                    continue
                words = [*(self._pool[i] for i in chosen), self._endings[final]]
                pieces = [*(self._plain[i] for i in chosen), final_ids]
                return self._joined(body, ids, items, words, pieces)
        raise InputError(
            f"No words make this prompt exactly {target_tokens:,} tokens long with this tokenizer: ask for a"
            " few tokens more."
        )

    def _joined(self, body: str, ids: Ids, items: int, words: list[str], pieces: list[Ids]) -> Draft:
        text = [self._head, body]
        parts = [ids]
        for offset, (word, word_ids) in enumerate(zip(words, pieces, strict=True)):
            if self._numbered:
                text.append(f" {items + offset + 1}.")
                parts.append(self._numbers[items + offset])
            text.append(f" {word}")
            parts.append(word_ids)
        return Draft("".join([*text, self._near, self._rest]), np.concatenate([*parts, self._rest_ids]))
