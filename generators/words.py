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


def invented_words(stream: Stream, count: int, syllables: int = 3) -> list[str]:
    """`count` different invented words that are in none of the lists.

    A word is consonant-vowel syllables and an optional ending: about 450 of one syllable, 34,000 of two,
    2.5 million of three.

    Raises:
        InputError: too many are asked for.
    """
    exist = len(_SYLLABLES) ** syllables * len(_CODAS)
    if 2 * count > exist:
        raise InputError(f"{count:,} invented words of {syllables} syllables are too many: {exist:,} exist.")
    known = set(real_words())
    found: dict[str, None] = {}
    while len(found) < count:
        rows = count - len(found) + 16
        parts = stream.below(len(_SYLLABLES), rows * syllables).reshape(rows, syllables).tolist()
        codas = stream.below(len(_CODAS), rows).tolist()
        for row, coda in zip(parts, codas, strict=True):
            word = "".join(_SYLLABLES[i] for i in row) + _CODAS[coda]
            if word not in known:
                found.setdefault(word)
    return list(found)[:count]


def compound_count() -> int:
    """How many adjective-noun compounds `compound` can form."""
    return len(words("adjectives")) * len(words("nouns"))


def compound(number: int) -> str:
    """Compound `number` of `compound_count()`, such as `amber-falcon`."""
    adjective, noun = divmod(number, len(words("nouns")))
    return f"{words('adjectives')[adjective]}-{words('nouns')[noun]}"
