"""Prompts of an exact number of tokens: head, filler with needles in it, question. Only filler gives way.

Every piece is tokenised once and the counts are added up; the pieces begin with a space after a non-space,
which is where pre-tokenisers split. The finished prompt is tokenised once as a whole to check it. A tokenizer
whose tokens do span pieces is met by correcting the aim and checking again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from generators.pieces import Ids
from generators.prose import sentences
from generators.record import Needle
from generators.rng import Stream
from generators.tokenizer import Tokenizer, same_ids
from harness.errors import InputError

_POOL = 384
# Where too little room is left for a sentence: the beginning of this one, and what may end it.
_SHORT_WORDS = ["so", "it", "was", "and", "then", "they", "were", "on", "and", "on", "as", "ever"]
_SHORT_ENDS = ("", ".", " a", " I", " .", " ..")
_FRAGMENTS = tuple(
    "".join(f" {word}" for word in _SHORT_WORDS[:length]) + end
    for length in range(len(_SHORT_WORDS) + 1)
    for end in _SHORT_ENDS
    if (length or end.startswith(" "))
)
_MAX_ROUNDS = 64
# Needles among needles leave room for several sentences.
_MOST_CLOSING = 12


@dataclass(frozen=True)
class Draft:
    """A user message with the prompt's predicted ids and where its needles stand.

    Attributes:
        content: the message.
        ids: ids of the whole prompt, chat frame included.
        needles: offsets are those of the whole prompt.
    """

    content: str
    ids: Ids
    needles: list[Needle] = field(default_factory=list)


class Block(Protocol):
    """A run of filler sentences."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """Tokens of each sentence."""

    def render(self, start: int, stop: int) -> tuple[str, Ids]:
        """Text and ids of sentences start..stop-1."""


class Filler(Protocol):
    """A source of filler that never repeats a passage."""

    def take(self, room_tokens: int) -> Block:
        """As many sentences as fit."""


def impossible(asked: int, needed: int, what: str) -> InputError:
    """The error for a context too short to hold what may not be cut."""
    return InputError(
        f"{asked:,} tokens are too few: {what} alone take {needed:,}. Ask for a longer context or for less"
        " in it."
    )


def split_ask(ask: str) -> tuple[str, str]:
    """The question's first word, with the empty line before it, and the rest, which starts with a space."""
    place = ask.index(" ")
    return ask[:place], ask[place:]


class Closer:
    """Ends filler exactly where the question begins.

    Args:
        near: the start of the question, which may merge with what stands before it.
    """

    def __init__(self, tokenizer: Tokenizer, near: str, stream: Stream) -> None:
        self._tokenizer, self._near = tokenizer, near
        drawn = list(dict.fromkeys(sentences(stream, _POOL)))
        self._pool = [*drawn, *_FRAGMENTS]
        self._final = tokenizer.separate_ids([text + near for text in self._pool])
        # Only whole sentences may stand before another piece.
        self._plain = tokenizer.piece_ids(drawn)
        self._by_count = by_count(self._plain)
        typical = sorted(map(len, self._plain))[len(drawn) // 2] + len(near)
        self.reserve_tokens = 2 * typical

    def close(self, last: str, room_tokens: int) -> tuple[list[str], list[Ids]] | None:
        """Closing filler for `room_tokens` tokens: those of `last`, of the filler and of `near` together.

        Args:
            last: the piece before; where nothing fits between, it is tokenised again together with `near`.

        Returns:
            Texts and ids that take the place of `last`, `near` part of the final one; None if nothing fits.
        """
        last_ids, joined = self._tokenizer.piece_ids([last, last + self._near])
        if len(joined) == room_tokens:
            return [last + self._near], [joined]
        room = room_tokens - len(last_ids)
        for length in range(_MOST_CLOSING + 1):
            for i, ids in enumerate(self._final):
                if ids is None:
                    continue
                chosen = combine(self._by_count, room - len(ids), length)
                if chosen is not None and i not in chosen:
                    texts = [last, *(self._pool[j] for j in chosen), self._pool[i] + self._near]
                    return texts, [last_ids, *(self._plain[j] for j in chosen), ids]
        return None


def by_count(items: Sequence[Ids]) -> dict[int, list[int]]:
    """Numbers of the items that have each token count."""
    found: dict[int, list[int]] = {}
    for i, ids in enumerate(items):
        found.setdefault(len(ids), []).append(i)
    return found


def combine(stock: Mapping[int, list[int]], room: int, length: int) -> list[int] | None:
    """`length` different items whose token counts add up to `room`, from lists of items by token count."""
    if length == 0:
        return [] if room == 0 else None
    counts = sorted(count for count, items in stock.items() if items)
    if not counts or not counts[0] * length <= room <= counts[-1] * length:
        return None
    # Near the mean first, so that the rest stays within reach.
    for count in sorted(counts, key=lambda c: abs(c * length - room)):
        choices = stock[count]
        rest = combine({**stock, count: choices[1:]}, room - count, length - 1)
        if rest is not None:
            return [choices[0], *rest]
    return None


def haystack(
    tokenizer: Tokenizer,
    *,
    head: str,
    needles: Sequence[tuple[str, str, str]],
    ask: str,
    filler: Filler,
    target_tokens: int,
    stream: Stream,
    attempt: int = 0,
    depth_percent: float | None = None,
) -> Draft:
    """A prompt of `target_tokens` tokens with needles in order at random places of the filler.

    Args:
        needles: (sentence with its leading space, key, value), in the order in which they appear.
        attempt: another number ends the filler otherwise.
        depth_percent: place of all needles, 0 at the start and 100 at the end; random if None.

    Raises:
        InputError: head, needles and question alone are longer, or no filler makes the length exact.
    """
    near, rest = split_ask(ask)
    head_ids = tokenizer.first_ids(head)
    rest_ids = tokenizer.last_ids([rest], after=":")[0]
    needle_ids = tokenizer.piece_ids([text for text, _, _ in needles])
    ending = tokenizer.piece_ids([needles[-1][0] + near])[0]
    fixed = len(head_ids) + sum(map(len, needle_ids)) + len(rest_ids)
    needed = fixed - len(needle_ids[-1]) + len(ending)
    if target_tokens < needed:
        raise impossible(target_tokens, needed, f"instructions, {len(needles)} needles and question")
    room = target_tokens - fixed
    closer = Closer(tokenizer, near, stream.child("close", attempt))
    block = filler.take(room - closer.reserve_tokens)
    count = len(block.counts)
    slots = _slots(count, len(needles), stream.child("slots"), depth_percent)
    texts, pieces, order = [head], [head_ids], []
    done = 0
    for number, slot in enumerate(slots):
        if slot > done:
            text, ids = block.render(done, slot)
            texts.append(text)
            pieces.append(ids)
            done = slot
        order.append(len(texts))
        texts.append(needles[number][0])
        pieces.append(needle_ids[number])
    if count > done:
        if count - 1 > done:
            text, ids = block.render(done, count - 1)
            texts.append(text)
            pieces.append(ids)
        text, ids = block.render(count - 1, count)
        texts.append(text)
        pieces.append(ids)
    left = target_tokens - sum(map(len, pieces)) - len(rest_ids) + len(pieces[-1])
    closed = closer.close(texts[-1], left)
    if closed is None:
        raise InputError(
            f"No filler makes this prompt exactly {target_tokens:,} tokens long with this tokenizer (at least"
            f" {needed:,} are needed). Ask for a few tokens more."
        )
    texts[-1:], pieces[-1:] = closed
    placed = zip(order, needles, needle_ids, strict=True)
    marks = {i: (*needle, len(ids)) for i, needle, ids in placed}
    return join([*texts, rest], [*pieces, rest_ids], len(tokenizer.before), marks)


def _slots(count: int, needles: int, stream: Stream, depth_percent: float | None) -> list[int]:
    """Sentence numbers before which needles stand, ascending; a sentence remains last where there is one."""
    places = max(count, 1)
    if depth_percent is not None:
        return [min(int(count * depth_percent / 100), places - 1)] * needles
    # Shares of the text, so that its needles stay about where they are when it grows by a sentence.
    shares = stream.words(4 * needles) >> np.uint64(32)
    drawn = dict.fromkeys(int(share) * places >> 32 for share in shares)
    if len(drawn) >= needles:
        return sorted(list(drawn)[:needles])
    if needles <= places:
        return sorted(stream.distinct(places, needles))
    return sorted(int(i) for i in stream.below(places, needles))


def join(
    texts: Sequence[str],
    pieces: Sequence[Ids],
    frame_characters: int,
    needles: Mapping[int, tuple[str, str, str, int]],
) -> Draft:
    """Put pieces together; `needles` tells which of them are needles: (text, key, value, tokens)."""
    token_ends = np.cumsum([len(ids) for ids in pieces])
    char_ends = np.cumsum([len(text) for text in texts])
    found = []
    for i, (text, key, value, count) in needles.items():
        sentence = text.lstrip(" ")
        start = frame_characters + int(char_ends[i - 1]) + len(text) - len(sentence)
        found.append(Needle(int(token_ends[i - 1]), count, start, sentence, key, value))
    return Draft("".join(texts), np.concatenate(list(pieces)), found)


def exact(
    tokenizer: Tokenizer, target_tokens: int, plan: Callable[[int, int], Draft], *, check: bool = True
) -> Draft:
    """The draft of a plan, made exact.

    Args:
        plan: (aim in tokens, round) -> draft; a later round may choose other filler.
        check: tokenise the finished prompt as a whole. Without it the sum of the pieces is trusted, and a
            tokenizer that does not add up on a sample is refused.

    Raises:
        InputError: the plan cannot be met.
    """
    aim = target_tokens
    for attempt in range(_MAX_ROUNDS):
        draft = plan(aim, attempt)
        if not check:
            if not (tokenizer.additive and tokenizer.cached("adds up", lambda: _adds_up(tokenizer))):
                raise InputError("This tokenizer merges text across pieces: build with check=True.")
            return draft
        ids = tokenizer.encode(draft.content)
        if same_ids(ids, draft.ids):
            return draft
        if len(ids) == target_tokens:
            return _relocate(tokenizer, draft)
        aim += target_tokens - len(ids)
    raise InputError(
        f"No text of exactly {target_tokens:,} tokens was found in {_MAX_ROUNDS} rounds with this tokenizer;"
        f" the nearest try had {len(ids):,}. Ask for a few tokens more."
    )


def _adds_up(tokenizer: Tokenizer) -> bool:
    """Whether the tokens of a sample text are those of its pieces."""
    pieces = [f" {word}" for sentence in sentences(Stream("sample"), 256) for word in sentence.split()]
    whole = tokenizer.piece_ids(["".join(pieces)])[0]
    return same_ids(np.concatenate(tokenizer.piece_ids(pieces)), whole)


def _relocate(tokenizer: Tokenizer, draft: Draft) -> Draft:
    """Needle offsets as the whole tokenisation has them."""
    ids, starts, ends = tokenizer.encode_with_offsets(draft.content)
    needles = []
    for needle in draft.needles:
        first, count = locate(starts, ends, needle.char_offset, len(needle.text))
        needles.append(replace(needle, token_offset=first, token_count=count))
    return Draft(draft.content, ids, needles)


def locate(
    starts: NDArray[np.int64], ends: NDArray[np.int64], char_offset: int, characters: int
) -> tuple[int, int]:
    """The first token of a needle, the space before it included, and how many tokens it has."""
    first = int(np.searchsorted(ends, char_offset - 1, side="right"))
    stop = int(np.searchsorted(starts, char_offset + characters, side="left"))
    return first, stop - first
