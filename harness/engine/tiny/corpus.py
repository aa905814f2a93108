"""Training text: the package's own task prompts at small sizes, copying, and plain stories.

Prompts are put together from the templates, word lists and prose of `generators`, so that what an experiment
asks is of the kind the model saw. Nothing here is tokenised: lengths are aimed at, not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from generators.prose import sentences
from generators.rng import Stream
from generators.templates import (
    CWE_ASK,
    CWE_HEAD,
    FWE_ASK,
    FWE_HEAD,
    NIAH_ASK_ALL_VALUES,
    NIAH_ASK_ENUM,
    NIAH_ASK_KEYS,
    NIAH_ASK_ONE,
    NIAH_HEAD,
    NIAH_NEEDLE,
    VT_ASK,
    VT_COPY,
    VT_HEAD,
    VT_SET,
    fill,
    ideal_answer,
    numbered,
    spoken_list,
)
from generators.words import compound, compound_count, invented_words, real_words

# Rough token counts, only used to aim at a length.
_SENTENCE, _NEEDLE, _ANSWER_LINE, _FRAME = 14, 17, 15, 85
_COPY_REQUEST = "Repeat this text.\n\nText:"
_LIST_REQUEST = "Answer with a numbered list of these keys in this order, one line each:"
_STORY_REQUEST = "Continue this story.\n\nStory:"


@dataclass(frozen=True)
class Document:
    """A user message and the ideal answer to it."""

    kind: str
    message: str
    answer: str


def keys(stream: Stream, count: int) -> list[str]:
    """Different adjective-noun keys, as retrieval tasks use them."""
    return [compound(number) for number in stream.distinct(compound_count(), count)]


def numbers(stream: Stream, count: int, digits: int = 7) -> list[str]:
    """Different numbers of `digits` digits."""
    low = 10 ** (digits - 1)
    return [str(low + number) for number in stream.distinct(9 * low, count)]


def _scattered(stream: Stream, filler: list[str], needles: Sequence[str]) -> str:
    """Filler with needles between its sentences, needles in their order."""
    places = sorted(int(i) for i in stream.below(len(filler) + 1, len(needles)))
    parts: list[str] = []
    done = 0
    for place, needle in zip(places, needles, strict=True):
        parts += [*filler[done:place], needle]
        done = place
    return "".join([*parts, *filler[done:]])


def retrieval(
    stream: Stream, filler_sentences: int, needles: int, asked: int, digits: int = 7, form: str | None = None
) -> Document:
    """Needles in prose, some or all asked for, in one of the retrieval tasks' forms."""
    labels = keys(stream, needles)
    values = dict(zip(labels, numbers(stream, needles, digits), strict=True))
    wanted = stream.sample(labels, asked)
    form = form or stream.choice(("enum", "enum", "enum", "lines", "values"))
    if asked == 1 and form != "enum":
        form = "one"
    if form == "values" and needles >= 2:
        same = wanted[0]
        pairs = [(same, value) for value in list(values.values())[:asked]]
        pairs += [(key, values[key]) for key in labels[asked:] if key != same]
        pairs = stream.shuffled(pairs)
        wanted, gold, task = [same], [value for key, value in pairs if key == same], "niah_multivalue"
        ask = NIAH_ASK_ALL_VALUES
    else:
        pairs = stream.shuffled(list(values.items()))
        gold = [values[key] for key in wanted]
        task, ask = {
            "enum": ("niah_multiquery_enum", NIAH_ASK_ENUM),
            "lines": ("niah_multiquery", NIAH_ASK_KEYS),
        }.get(form, ("niah_single", NIAH_ASK_ONE))
    words = {"kind": "number", "kinds": "numbers", "keys": spoken_list(wanted), "count": len(gold)}
    texts = [fill(NIAH_NEEDLE, {"kind": "number", "key": key, "value": value}) for key, value in pairs]
    body = _scattered(stream, sentences(stream, filler_sentences), texts)
    answer = ideal_answer(task, gold, wanted)
    return Document(task, fill(NIAH_HEAD, words) + body + fill(ask, words), answer)


def variables(stream: Stream, filler_sentences: int, hops: int) -> Document:
    """A chain of assignments in prose."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    names = ["".join(letters[i] for i in stream.below(26, 5)) for _ in range(hops + 1)]
    value = str(stream.integer(10_000, 99_999))
    needles = [fill(VT_SET, {"name": names[0], "value": value})]
    needles += [fill(VT_COPY, {"name": name, "source": source}) for source, name in pairwise(names)]
    body = _scattered(stream, sentences(stream, filler_sentences), needles)
    ask = fill(VT_ASK, {"value": value, "count": hops + 1})
    return Document("vt", VT_HEAD + body + ask, ideal_answer("vt", names))


def common_words(stream: Stream, length: int, asked: int) -> Document:
    """A numbered list in which a few words occur several times, all others once."""
    repeats = stream.integer(3, 5)
    drawn = stream.sample(real_words(), asked + max(2, length - asked * repeats))
    common, others = drawn[:asked], drawn[asked:]
    listed = stream.shuffled([*common * repeats, *others])
    body = "".join(f" {number}. {word}" for number, word in enumerate(listed, 1))
    ask = fill(CWE_ASK, {"count": asked})
    return Document("cwe", CWE_HEAD + body + ask, ideal_answer("cwe", sorted(common)))


def frequent_words(stream: Stream, length: int, asked: int) -> Document:
    """Invented words of falling frequency among runs of dots."""
    coded = invented_words(stream, asked + max(2, length // 12))
    counts = [max(2, int(length / (rank + 1.5) ** 2)) + (asked - rank) for rank in range(asked)]
    units = ["..."] * max(1, length // 3)
    units += [word for word, count in zip(coded, counts, strict=False) for _ in range(count)]
    units += coded[asked:]
    body = "".join(f" {unit}" for unit in stream.shuffled(units))
    return Document(
        "fwe", FWE_HEAD + body + fill(FWE_ASK, {"count": asked}), ideal_answer("fwe", coded[:asked])
    )


def repetition(stream: Stream, items: int) -> Document:
    """Unpredictable material to copy, or to number in order: the quickest way to learn to look back."""
    form = stream.integer(0, 5)
    if form >= 4:
        labels = keys(stream, items)
        return Document("copy", f"{_LIST_REQUEST} {spoken_list(labels)}", numbered(labels))
    if form == 0:
        body = " " + " ".join(stream.sample(real_words(), 2 * items))
    elif form == 1:
        body = " " + " ".join(numbers(stream, items, stream.integer(3, 7)))
    else:
        labels = keys(stream, items)
        values = numbers(stream, items, stream.integer(3, 7))
        lines = [f"{key}: {value}" for key, value in zip(labels, values, strict=True)]
        body = "\n" + (numbered(lines) if form == 2 else "\n".join(lines))
    return Document("copy", _COPY_REQUEST + body, body.strip())


def story(stream: Stream, count: int) -> Document:
    """Prose to be continued by prose."""
    told = sentences(stream, count)
    split = max(1, count // 3)
    return Document("story", _STORY_REQUEST + "".join(told[:split]), "".join(told[split:]).strip())


def short_document(stream: Stream) -> Document:
    """A document of one or two hundred tokens: mostly copying and recall of a few facts."""
    kind = stream.integer(0, 99)
    if kind < 45:
        return repetition(stream, stream.integer(1, 5))
    if kind < 92:
        needles = stream.integer(1, 4)
        form = stream.choice(("enum", "enum", "lines"))
        return retrieval(
            stream, stream.integer(0, 1), needles, stream.integer(1, needles), stream.integer(2, 7), form
        )
    return story(stream, stream.integer(2, 5))


def drill(stream: Stream) -> Document:
    """Practice in going through a list of keys in order: few digits a value, so that keys follow densely."""
    kind = stream.integer(0, 99)
    if kind < 35:
        labels = keys(stream, stream.integer(2, 10))
        return Document("copy", f"{_LIST_REQUEST} {spoken_list(labels)}", numbered(labels))
    if kind < 85:
        needles = stream.integer(2, 7)
        asked = stream.integer((needles + 1) // 2, needles)
        return retrieval(stream, 0, needles, asked, stream.integer(1, stream.choice((2, 4, 7))), "enum")
    return short_document(stream)


def document(stream: Stream, aim_tokens: int) -> Document:
    """A document of roughly `aim_tokens` tokens, answer included."""
    kind = stream.integer(0, 99)
    if kind < 66:
        room = max(1, (aim_tokens - _FRAME) // (_NEEDLE + _ANSWER_LINE))
        needles = stream.integer(1, min(room, 20))
        asked = stream.integer((needles + 1) // 2, needles)
        left = aim_tokens - _FRAME - needles * _NEEDLE - asked * (_ANSWER_LINE + 5)
        return retrieval(stream, max(0, left // _SENTENCE), needles, asked)
    if kind < 74:
        hops = stream.integer(1, 4)
        return variables(stream, max(0, (aim_tokens - 160) // _SENTENCE), hops)
    if kind < 80:
        return common_words(stream, max(8, min((aim_tokens - 80) // 5, 160)), stream.integer(2, 4))
    if kind < 86:
        return frequent_words(stream, max(8, min((aim_tokens - 80) // 6, 100)), 3)
    if kind < 94:
        return repetition(stream, max(2, min(aim_tokens // 30, 12)))
    return story(stream, max(3, min(aim_tokens // _SENTENCE, 30)))


def tokenizer_texts(seed: int, count: int) -> list[str]:
    """Text to train a tokenizer on: documents of several sizes, and keys enough for their words to be tokens.

    A key of three tokens (adjective, hyphen, noun) fits the short convolutions of a small model.
    """
    texts = []
    for index in range(count):
        stream = Stream("tiny-tokenizer", seed, index)
        made = document(stream, stream.choice((128, 256, 512)))
        texts.append(f"{made.message}\n{made.answer}")
    stream = Stream("tiny-tokenizer-keys", seed)
    return texts + ["".join(f" {key}" for key in keys(stream, 400)) for _ in range(count // 15)]
