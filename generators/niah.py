"""RULER's retrieval family: secrets hidden in a text, to be given back.

Differs from RULER in the words of the prompt, in filler that never repeats (RULER's noise is five sentences
over and over), and in places that are drawn from the whole text rather than from 40 fixed depths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from generators.assemble import Draft, Filler, haystack, impossible
from generators.documents import UserText, expand, read_text
from generators.fillers import Pattern, Prose
from generators.rng import Stream
from generators.task import Built, Context, at_least, one_of
from generators.templates import (
    NIAH_ASK_ALL_VALUES,
    NIAH_ASK_ENUM,
    NIAH_ASK_KEYS,
    NIAH_ASK_ONE,
    NIAH_HEAD,
    NIAH_NEEDLE,
    fill,
    spoken_list,
)
from generators.words import compound, compound_count
from harness.errors import ConfigError

_KINDS = {"numbers": "number", "words": "word", "uuids": "uuid"}
_HAYSTACKS = ("noise", "needles", "prose")
# Numbers have seven digits.
_LEAST_NUMBER = 1_000_000
# No needle is shorter, so a text of n tokens holds fewer than n / 8 of them.
_NEEDLE_TOKENS = 8


def check(params: Mapping[str, Any]) -> None:
    """Refuse parameters that make no needles, whatever the length.

    Raises:
        ConfigError: names one and what it must be.
    """
    one_of("haystack_kind", params["haystack_kind"], _HAYSTACKS)
    for name in ("values_kind", "keys_kind"):
        one_of(name, params[name], tuple(_KINDS))
    for name in ("keys", "values"):
        at_least(name, params.get(name, 1))
    depth_percent = params.get("depth_percent")
    if depth_percent is not None and not 0 <= depth_percent <= 100:
        raise ConfigError(f"depth_percent={depth_percent} must lie between 0 and 100.")
    if (params["haystack_kind"] == "prose") != bool(params["files"]):
        raise ConfigError("haystack_kind=prose needs files=[...], and only it takes them.")


def single(
    context: Context,
    *,
    haystack_kind: str = "noise",
    values_kind: str = "numbers",
    keys_kind: str = "words",
    depth_percent: float | None = None,
    files: Sequence[str] = (),
) -> Built:
    """One needle, one question."""
    return _build(context, 1, 1, 1, haystack_kind, values_kind, keys_kind, files, NIAH_ASK_ONE, depth_percent)


def multikey(
    context: Context,
    *,
    keys: int = 4,
    haystack_kind: str = "noise",
    values_kind: str = "numbers",
    keys_kind: str = "words",
    files: Sequence[str] = (),
) -> Built:
    """Several needles, one of which is asked for."""
    return _build(context, keys, 1, 1, haystack_kind, values_kind, keys_kind, files, NIAH_ASK_ONE)


def multivalue(
    context: Context,
    *,
    values: int = 4,
    haystack_kind: str = "noise",
    values_kind: str = "numbers",
    keys_kind: str = "words",
    files: Sequence[str] = (),
) -> Built:
    """Several values of one key, all asked for."""
    return _build(context, 1, values, 1, haystack_kind, values_kind, keys_kind, files, NIAH_ASK_ALL_VALUES)


def multiquery(
    context: Context,
    *,
    keys: int = 4,
    haystack_kind: str = "noise",
    values_kind: str = "numbers",
    keys_kind: str = "words",
    files: Sequence[str] = (),
) -> Built:
    """Several needles, all asked for."""
    return _build(context, keys, 1, keys, haystack_kind, values_kind, keys_kind, files, NIAH_ASK_KEYS)


def multiquery_enum(
    context: Context,
    *,
    keys: int = 48,
    haystack_kind: str = "noise",
    values_kind: str = "numbers",
    keys_kind: str = "words",
    files: Sequence[str] = (),
) -> Built:
    """Many needles, all asked for as a numbered list, so that the decode is long."""
    return _build(context, keys, 1, keys, haystack_kind, values_kind, keys_kind, files, NIAH_ASK_ENUM)


def _build(
    context: Context,
    keys: int,
    values: int,
    queries: int,
    haystack_kind: str,
    values_kind: str,
    keys_kind: str,
    files: Sequence[str],
    ask: str,
    depth_percent: float | None = None,
) -> Built:
    if keys * values > context.context_tokens:
        raise impossible(context.context_tokens, keys * values * _NEEDLE_TOKENS, f"{keys * values:,} needles")
    background = "\n\n".join(read_text(path) for path in expand(files)) if files else ""

    spare = context.context_tokens // _NEEDLE_TOKENS + 1 if haystack_kind == "needles" else 0
    labels = _Labels(context.stream, keys_kind, values_kind, keys + spare, keys * values + spare, background)
    gold_keys = [next(labels.keys) for _ in range(keys)]
    pairs = [(key, next(labels.values)) for key in gold_keys for _ in range(values)]
    kind = _KINDS[values_kind]

    def needle(key: str, value: str) -> tuple[str, str, str]:
        return fill(NIAH_NEEDLE, {"kind": kind, "key": key, "value": value}), key, value

    needles = context.stream.child("order").shuffled([needle(*pair) for pair in pairs])
    asked = context.stream.child("queries").sample(gold_keys, queries)
    place = {key: number for number, key in enumerate(asked)}
    # Values of one key are asked for in the order of the text.
    gold = [value for _, key, value in sorted(needles, key=lambda n: place.get(n[1], -1)) if key in place]
    words = {"kind": kind, "kinds": values_kind, "keys": spoken_list(asked), "count": len(gold)}
    pattern, rows = _distractors(kind, labels)
    distractors = Pattern(context.tokenizer, pattern, rows)

    def plan(aim: int, attempt: int) -> Draft:
        stream = context.stream.child("plan")
        filler: Filler = Prose(context.tokenizer, stream)
        if haystack_kind == "needles":
            filler = distractors
        elif haystack_kind == "prose":
            filler = UserText(context.tokenizer, background, stream, ", ".join(map(str, files)))
        return haystack(
            context.tokenizer,
            head=fill(NIAH_HEAD, words),
            needles=needles,
            ask=fill(ask, words),
            filler=filler,
            target_tokens=aim,
            stream=stream,
            attempt=attempt,
            depth_percent=depth_percent,
        )

    draft = context.exact(plan)
    return Built(draft, gold, {"keys": asked, "question": fill(ask, words).strip(), "unique": "values"})


def _distractors(kind: str, labels: _Labels) -> tuple[list[str | int], Iterator[tuple[str]]]:
    """The needle's own sentence as a pattern, and for each what follows its fixed beginning."""
    begin, _, end = fill(NIAH_NEEDLE, {"kind": kind, "key": "<key>", "value": "<value>"}).partition(" <key>")
    middle, _, ending = end.partition("<value>")
    pattern: list[str | int] = [*(f" {word}" for word in begin.split()), 0]
    pairs = zip(labels.keys, labels.values, strict=False)
    return pattern, ((f" {key}{middle}{value}{ending}",) for key, value in pairs)


class _Labels:
    """Different keys and different values, none of which is in the background text.

    Attributes:
        keys, values: iterators over the drawn labels.
    """

    def __init__(
        self, stream: Stream, keys_kind: str, values_kind: str, keys: int, values: int, background: str
    ) -> None:
        if keys_kind == values_kind == "words":
            # From one draw, so that no key is a value.
            shared = _draw(stream.child("labels"), "words", keys + values)
            drawn_keys, drawn_values = shared[:keys], shared[keys:]
        else:
            drawn_keys = _draw(stream.child("keys"), keys_kind, keys)
            drawn_values = _draw(stream.child("values"), values_kind, values)
        # Written out only as far as they are used.
        spelled_keys = map(_SPELL[keys_kind], drawn_keys)
        spelled_values = map(_SPELL[values_kind], drawn_values)
        self.keys: Iterator[str] = (key for key in spelled_keys if key not in background)
        self.values: Iterator[str] = (value for value in spelled_values if value not in background)


def _draw(stream: Stream, kind: str, count: int) -> list[int]:
    """Numbers of different labels of a kind, in random order."""
    if kind == "words":
        return stream.distinct(compound_count(), count)
    if kind == "numbers":
        return stream.distinct(_LEAST_NUMBER * 9, count)
    words = stream.words(2 * count).tolist()
    return [high << 64 | low for high, low in zip(words[0::2], words[1::2], strict=True)]


def _number(number: int) -> str:
    return str(_LEAST_NUMBER + number)


def _uuid(number: int) -> str:
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], "4" + digits[13:16], "a" + digits[17:20], digits[20:]))


_SPELL: dict[str, Callable[[int], str]] = {"words": compound, "numbers": _number, "uuids": _uuid}
