"""RULER's aggregation tasks: the most common words of a list, the most frequent words of a coded text.

The answer is a set that the counts define: no word outside it occurs as often as one inside. Differs from
RULER in the words of the prompt, in having no worked example, and in counts that are set instead of drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, localcontext
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from generators.assemble import Draft, impossible
from generators.fillers import UnitTable
from generators.rng import Stream
from generators.task import Built, Context, at_least
from generators.templates import CWE_ASK, CWE_HEAD, FWE_ASK, FWE_HEAD, fill
from generators.wordlist import WordRun
from generators.words import invented_words, real_words
from harness.errors import ConfigError

# How often a common and an uncommon word occur: RULER's counts, then smaller ones for short contexts.
_REPEATS = ((30, 3), (20, 2), (10, 2), (6, 1), (4, 1), (3, 1), (2, 1))
# Common words take no more than this share of the list, in percent, unless even the last counts need more.
_COMMON_PERCENT = 60
_NOISE = " ..."
# A word and its number have about so many tokens; many words are tokenised at once, which is faster.
_ITEM_TOKENS = 12
_MOST_AT_ONCE = 1 << 16


def check_common(params: Mapping[str, Any]) -> None:
    """Refuse counts that make no words the most common.

    Raises:
        ConfigError: names one and what it must be.
    """
    words, common, uncommon = (params[name] for name in ("words", "common_repeats", "uncommon_repeats"))
    at_least("words", words)
    if (common is None) != (uncommon is None):
        raise ConfigError("Give common_repeats and uncommon_repeats both, or neither.")
    if common is not None:
        at_least("uncommon_repeats", uncommon)
        at_least("common_repeats", common, uncommon + 1)
    if words > len(real_words()):
        raise ConfigError(f"words={words} is too many: the lists hold {len(real_words()):,} words.")


def check_frequent(params: Mapping[str, Any]) -> None:
    """Refuse counts and exponents that make no words the most frequent.

    Raises:
        ConfigError: names one and what it must be.
    """
    at_least("words", params["words"])
    if params["vocabulary"] is not None:
        at_least("vocabulary", params["vocabulary"], params["words"] + 1)
    if not 1.0 < params["alpha"] <= 8.0:
        raise ConfigError(f"alpha={params['alpha']} must lie above 1 and be at most 8.")


def common_words(
    context: Context,
    *,
    words: int = 10,
    common_repeats: int | None = None,
    uncommon_repeats: int | None = None,
) -> Built:
    """A numbered list of words, a few of which occur more often than all others.

    Args:
        words: how many words are common, and asked for.
        common_repeats, uncommon_repeats: how often each occurs; chosen for the length where left out.
    """
    tokenizer = context.tokenizer
    shuffled = context.stream.child("words").shuffled(real_words())
    gold, others = shuffled[:words], shuffled[words:]
    ask = fill(CWE_ASK, {"count": words})
    given = common_repeats is not None and uncommon_repeats is not None
    rungs = [(int(common_repeats or 0), int(uncommon_repeats or 0))] if given else list(_REPEATS)
    fixed: dict[str, int] = {}

    def plan(aim: int, attempt: int) -> Draft:
        run = WordRun(tokenizer, CWE_HEAD, ask, context.stream.child("close", attempt), numbered=True)
        room = aim - run.fixed_tokens
        once = int(run.word_tokens(run.word_numbers(gold)).sum())
        for common, uncommon in rungs:  # noqa: B007 (used after the loop)
            items = words * common
            # A list of more items than the room has tokens fails anyhow; its numbers are not written out.
            counted = items if items <= max(room, _MOST_AT_ONCE) else 0
            need = once * common + run.number_tokens(0, counted) + items - counted
            if need * 100 <= room * _COMMON_PERCENT:
                break
        least = need + run.closing_tokens(counted)
        if least > room:
            what = f"instructions, {words} common words {common} times each and question"
            raise impossible(aim, run.fixed_tokens + least, what)
        fixed.update(common_repeats=common, uncommon_repeats=uncommon)
        listed = np.repeat(run.word_numbers(gold), common)
        more = _fill_list(run, len(listed), need, _supply(context.stream, others), uncommon, room)
        listed = np.concatenate([listed, np.repeat(more, uncommon)])
        return run.finish(listed[context.stream.child("order").permutation(len(listed))], aim)

    draft = context.exact(plan)
    return Built(draft, sorted(gold), {"question": ask.strip(), "unique": "counts", **fixed})


def frequent_words(
    context: Context, *, words: int = 3, alpha: float = 2.0, vocabulary: int | None = None
) -> Built:
    """A text of invented words whose counts follow Zipf's law, dots in the place of the first rank.

    Args:
        words: how many of the most frequent words are asked for.
        alpha: exponent of Zipf's law; the count of rank r is proportional to r ** -alpha.
        vocabulary: different words, the dots not counted; one for each 50 words of text where left out.
    """
    tokenizer = context.tokenizer
    ask = fill(FWE_ASK, {"count": words})
    if words > context.context_tokens:
        raise impossible(context.context_tokens, 2 * words, f"{words:,} frequent words twice each")
    most = vocabulary or max(context.context_tokens // 50, words + 16)
    coded = invented_words(context.stream.child("words"), most)
    weights = _zipf_weights(alpha, most + 1)
    details: dict[str, int] = {}

    def plan(aim: int, attempt: int) -> Draft:
        run = WordRun(tokenizer, FWE_HEAD, ask, context.stream.child("close", attempt), numbered=False)
        room = aim - run.fixed_tokens - run.closing_tokens(0)
        table = UnitTable.of(tokenizer, [_NOISE, *(f" {word}" for word in coded)])

        def counts_of(total: int) -> tuple[NDArray[np.int64], int]:
            counts = _zipf_counts(weights, total, words, vocabulary)
            return counts, int((counts * table.count[: len(counts)]).sum())

        low, high = 0, max(room, 1)
        while low < high:
            middle = (low + high + 1) // 2
            if counts_of(middle)[1] <= room:
                low = middle
            else:
                high = middle - 1
        counts, used = counts_of(low)
        if used > room:
            what = f"instructions, {words} frequent words twice each, others once and question"
            raise impossible(aim, aim - room + used, what)
        counts[0] += (room - used) // int(table.count[0])
        details.update(total_words=int(counts.sum()), vocabulary=len(counts) - 1)
        units = np.repeat(np.arange(len(counts)), counts)
        picks = units[context.stream.child("order").permutation(len(units))]
        return run.finish_units(table, picks, aim)

    draft = context.exact(plan)
    return Built(draft, coded[:words], {"question": ask.strip(), "unique": "counts", **details})


def frequent_words_enum(
    context: Context, *, words: int = 30, alpha: float = 2.0, vocabulary: int | None = None
) -> Built:
    """`frequent_words` with many words asked for, so that the decode is long."""
    return frequent_words(context, words=words, alpha=alpha, vocabulary=vocabulary)


def _zipf_weights(alpha: float, ranks: int) -> NDArray[np.int64]:
    """2**40 * r ** -alpha, rounded down, for ranks 1..`ranks`; in decimal, so the same on every platform."""
    with localcontext() as arithmetic:
        arithmetic.prec = 28
        exponent = -Decimal(str(alpha))
        scale = Decimal(1 << 40)
        weights = [int(scale * Decimal(rank) ** exponent) for rank in range(1, ranks + 1)]
    return np.asarray(weights, dtype=np.int64)


def _zipf_counts(
    weights: NDArray[np.int64], total: int, asked: int, vocabulary: int | None
) -> NDArray[np.int64]:
    """Counts of the dots and of each word, the asked ones strictly above the others."""
    ranks = min(vocabulary or max(total // 50, asked + 1), len(weights) - 1)
    used = weights[: ranks + 1]
    counts = total * used // int(used.sum())
    top = counts[1 : asked + 1]
    np.maximum(top, 2, out=top)
    np.clip(counts[asked + 1 :], 1, int(top.min()) - 1, out=counts[asked + 1 :])
    return counts


def _supply(stream: Stream, listed: Sequence[str]) -> Iterator[str]:
    """Words without end: the lists' first, invented ones after them."""
    yield from listed
    batch = 0
    seen: set[str] = set()
    while True:
        for word in invented_words(stream.child("invented", batch), 16384):
            if word not in seen:
                seen.add(word)
                yield word
        batch += 1


def _fill_list(
    run: WordRun, size: int, tokens: int, supply: Iterator[str], uncommon: int, room: int
) -> NDArray[np.int64]:
    """Numbers of uncommon words for a list of `size` words and `tokens` tokens.

    As many of the supply, each `uncommon` times, as leave room for the closing words.
    """
    chosen = [np.zeros(0, dtype=np.int64)]
    while size + uncommon <= room:
        spare = room - tokens - run.closing_tokens(size)
        batch = list(islice(supply, max(min(spare // (_ITEM_TOKENS * uncommon), _MOST_AT_ONCE), 1)))
        words = run.word_numbers(batch)
        sizes = size + uncommon * np.arange(1, len(words) + 1)
        used = tokens + np.cumsum(run.word_tokens(words)) * uncommon
        used += run.number_tokens_to(sizes) - run.number_tokens(0, size)
        over = used + run.closing_tokens_of(sizes) > room
        fits = int(over.argmax()) if over.any() else len(words)
        chosen.append(words[:fits])
        if fits < len(words):
            return np.concatenate(chosen)
        size, tokens = int(sizes[-1]), int(used[-1])
    return np.concatenate(chosen)
