"""Seeded prose: sentences that never repeat as a passage, built from units whose token counts add up.

A unit is a space, a word and any punctuation that follows it. Tokenisers split text before the space of a
word (their pre-tokens start there), so the tokens of a text are those of its units one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from generators.rng import Stream
from generators.words import words

_LISTS = {
    "adj": "adjectives",
    "noun": "nouns",
    "verb": "verbs",
    "adv": "adverbs",
    "time": "times",
    "place": "places",
    "name": "names",
}
_SENTENCES = (
    "The {adj} {noun} near the {place} {adv} {verb} the {noun}.",
    "After the {time} the {noun} {verb} every {adj} {noun}.",
    "{name} {verb} the {noun} and {adv} {verb} the {adj} {noun}.",
    "Nobody at the {place} knew why the {noun} {verb} the {noun}.",
    "In the {time} one {adj} {noun} {verb} the {noun} behind the {place}.",
    "Some {adj} {noun} from the {place} {verb} {name} before the {time}.",
    "While {name} {verb} the {noun}, the {adj} {noun} {verb} the {place}.",
    "The {noun} was {adj} and the {noun} was {adj}.",
    "{name} and {name} {verb} the {adj} {noun} at the {place}.",
    "Every {time} the {noun} of the {place} {verb} this {adj} {noun}.",
    "They {adv} {verb} the {noun}, but {name} {verb} the {adj} one.",
    "By the {time} the {adj} {noun} had {adv} {verb} the {noun}.",
    "Was it {name} who {verb} the {noun} during the {time}?",
    "Between the {place} and the {place} the {noun} {verb} that {noun}.",
    "It {adv} rained, so {name} {verb} the {noun}.",
    "The {noun} {verb} {name}.",
)


@dataclass(frozen=True)
class Grammar:
    """The sentence patterns as numbers.

    Attributes:
        units: all units, such as ` falcon` and ` falcon.`.
        first: first[p, s], the unit that slot s of pattern p counts from; 0 beyond the pattern's end.
        size: size[p, s], how many units the slot chooses from.
        length: units in each pattern.
    """

    units: tuple[str, ...]
    first: NDArray[np.int64]
    size: NDArray[np.int64]
    length: NDArray[np.int64]


@cache
def grammar() -> Grammar:
    """The patterns compiled against the word lists."""
    units: list[str] = []
    ranges: dict[str, tuple[int, int]] = {}
    patterns: list[list[tuple[int, int]]] = []
    for sentence in _SENTENCES:
        slots = []
        for item in sentence.split():
            if item not in ranges:
                name, _, suffix = item[1:].partition("}") if item[0] == "{" else ("", "", "")
                choices = [word + suffix for word in words(_LISTS[name])] if name else [item]
                ranges[item] = (len(units), len(choices))
                units.extend(f" {choice}" for choice in choices)
            slots.append(ranges[item])
        patterns.append(slots)
    width = max(map(len, patterns))
    table = np.zeros((2, len(patterns), width), dtype=np.int64)
    for row, slots in enumerate(patterns):
        table[:, row, : len(slots)] = np.asarray(slots).T
    return Grammar(tuple(units), table[0], table[1], np.asarray([len(slots) for slots in patterns]))


def draw_sentences(stream: Stream, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw sentences as unit numbers.

    Returns:
        units: unit numbers of all sentences, one after the other.
        length: units in each of the `count` sentences.
    """
    rules = grammar()
    pattern = stream.below(len(_SENTENCES), count)
    size = rules.size[pattern]
    picks = stream.below(np.maximum(size, 1).ravel(), size.size).reshape(size.shape)
    return (rules.first[pattern] + picks)[size > 0], rules.length[pattern]


def sentences(stream: Stream, count: int) -> list[str]:
    """`count` sentences, each with its leading space."""
    units, length = draw_sentences(stream, count)
    texts = grammar().units
    ends = np.cumsum(length)
    return ["".join(texts[i] for i in units[end - n : end]) for end, n in zip(ends, length, strict=True)]
