"""Word lists of the package and pronounceable invented words.

The lists (`data/*.txt`, one word a line, sorted) name no person, place or object of the bAbI worlds, so that
filler built from them never states a fact of one.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from generators.rng import Stream
from harness.errors import InputError

LISTS = ("adjectives", "nouns", "verbs", "adverbs", "times", "places", "names")
_ONSETS = tuple("bdfghjklmnprstvz")
_VOWELS = tuple("aeiou")
_SYLLABLES = tuple(onset + vowel for onset in _ONSETS for vowel in _VOWELS)
_CODAS = ("", "l", "m", "n", "r", "s")
LFS_MARKER = "version https://git-lfs.github.com/spec/"


def read_word_list(text: str, source: str) -> tuple[str, ...]:
    """The words of a list, one a line.

    Raises:
        InputError: the text is a Git LFS pointer or holds no words.
    """
    if text.lstrip("\ufeff").startswith(LFS_MARKER):
        raise InputError(
            f"{source} is a Git LFS pointer, not a word list: fetch the file itself with `git lfs pull`."
        )
    words = tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not words:
        raise InputError(f"{source} holds no words.")
    return words


@cache
def words(name: str) -> tuple[str, ...]:
    """One of the lists named in `LISTS`, sorted."""
    return read_word_list(files("generators").joinpath("data", f"{name}.txt").read_text("utf-8"), name)


@cache
def real_words() -> tuple[str, ...]:
    """Every lower-case word of the lists, once, sorted (about 1,500)."""
    lists = (words(name) for name in LISTS if name != "names")
    return tuple(sorted({word for each in lists for word in each}))


def invented_word_count(syllables: int) -> int:
    """How many different invented words have this many syllables."""
    return int(len(_SYLLABLES) ** syllables) * len(_CODAS)


def invented_word(number: int, syllables: int) -> str:
    """Word `number` of `invented_word_count(syllables)`: consonant-vowel syllables and an optional ending.

    Different numbers give different words.
    """
    number, coda = divmod(number, len(_CODAS))
    parts = []
    for _ in range(syllables):
        number, syllable = divmod(number, len(_SYLLABLES))
        parts.append(_SYLLABLES[syllable])
    return "".join(parts) + _CODAS[coda]


def invented_words(stream: Stream, count: int, syllables: int = 3) -> list[str]:
    """`count` different invented words that are in none of the lists, in random order."""
    known = set(real_words())
    drawn = stream.distinct(invented_word_count(syllables), count + len(known))
    made = (invented_word(number, syllables) for number in drawn)
    return [word for word in made if word not in known][:count]


def compound_count() -> int:
    """How many adjective-noun compounds `compound` can form."""
    return len(words("adjectives")) * len(words("nouns"))


def compound(number: int) -> str:
    """Compound `number` of `compound_count()`, such as `amber-falcon`."""
    adjective, noun = divmod(number, len(words("nouns")))
    return f"{words('adjectives')[adjective]}-{words('nouns')[noun]}"
