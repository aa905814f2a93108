"""Prompts that are a run of words, numbered or not, closed to an exact number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from generators.assemble import Draft, by_count, combine, split_ask
from generators.fillers import UnitTable
from generators.lexicon import Lexicon
from generators.pieces import Ids, Rows
from generators.rng import Stream
from generators.tokenizer import Tokenizer
from generators.words import invented_words
from harness.errors import InputError

# Closing words are told from the others by their length: no invented word of the texts has these.
_CLOSING_SYLLABLES = (1, 2, 4, 5, 7)
_CLOSING_ITEMS = 3
_MOST_CLOSING_ITEMS = 24
_LEAST_NUMBERS = 1024


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
        self._numbers: Lexicon = tokenizer.cached("list numbers", lambda: Lexicon(tokenizer))
        self._words = Lexicon(tokenizer)
        drawn = (invented_words(stream.child(size), 24, size) for size in _CLOSING_SYLLABLES)
        self._pool = [word for words in drawn for word in words]
        plain = self._tokenizer.piece_ids([f" {word}" for word in self._pool])
        self._stock, self._plain = by_count(plain), plain
        self._typical = sorted(map(len, plain))[len(plain) // 2]
        self._endings = [word + dots for dots in ("", " .", " ..", " ...") for word in self._pool]
        self._final = tokenizer.separate_ids([f" {ending}{self._near}" for ending in self._endings])
        near_tokens = len(tokenizer.piece_ids([self._near], after="a")[0])
        self.fixed_tokens = len(self._head_ids) + near_tokens + len(self._rest_ids)

    def word_numbers(self, words: Sequence[str]) -> NDArray[np.int64]:
        """The numbers by which words are known here."""
        return self._words.numbers([f" {word}" for word in words])

    def word_tokens(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of each word, its space included."""
        return self._words.rows.count[words]

    def number_tokens_to(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of all numbers of runs of these sizes; none where the run has no numbers."""
        most = int(sizes.max(initial=0))
        if not self._numbered or not most:
            return np.zeros(len(sizes), dtype=np.int64)
        if len(self._numbers) < most:
            first = len(self._numbers) + 1
            last = max(most, first + _LEAST_NUMBERS)
            self._numbers.append([f" {number}." for number in range(first, last + 1)])
        ends = np.cumsum(self._numbers.rows.count[:most])
        return np.where(sizes > 0, ends[sizes - 1], 0)

    def number_tokens(self, start: int, stop: int) -> int:
        """Tokens of the numbers of items start..stop-1, counted from 0; none where the run has no numbers."""
        before, behind = self.number_tokens_to(np.asarray([start, stop]))
        return int(behind - before)

    def closing_tokens(self, items: int) -> int:
        """Room to leave for the closing words of a run of `items` words."""
        return int(self.closing_tokens_of(np.asarray([items]))[0])

    def closing_tokens_of(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """`closing_tokens` for several sizes of the run."""
        numbers = self.number_tokens_to(sizes + _CLOSING_ITEMS) - self.number_tokens_to(sizes)
        return _CLOSING_ITEMS * self._typical + numbers

    def finish(self, words: NDArray[np.int64], target_tokens: int) -> Draft:
        """The prompt with the words of these numbers in order, closed to `target_tokens`."""
        count = len(words)
        self.number_tokens(0, count)
        texts, rows = self._words.texts, self._words.rows
        picks = words
        if self._numbered:
            # One table of both, and turns: a number, a word.
            numbers = self._numbers.rows
            flat = np.concatenate([numbers.flat, rows.flat])
            rows = Rows.of(flat, np.concatenate([numbers.count, rows.count]))
            texts = self._numbers.texts + texts
            picks = np.empty(2 * count, dtype=np.int64)
            picks[0::2], picks[1::2] = np.arange(count), len(numbers) + words
        return self.finish_units(UnitTable.of_rows(texts, rows), picks, target_tokens, items=count)

    def finish_units(
        self, table: UnitTable, picks: NDArray[np.int64], target_tokens: int, *, items: int = 0
    ) -> Draft:
        """The prompt with the picked units in order, closed to `target_tokens`.

        Args:
            items: numbers that are among the units.
        """
        text, ids = table.render(picks)
        return self._close(text, np.concatenate([self._head_ids, ids]), items, target_tokens)

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
                parts.append(self._numbers.rows.take(np.asarray([items + offset])))
            text.append(f" {word}")
            parts.append(word_ids)
        return Draft("".join([*text, self._near, self._rest]), np.concatenate([*parts, self._rest_ids]))
