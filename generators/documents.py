"""Texts of a user: reading them, cutting them into filler, and truncating a document to an exact length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from generators.assemble import Draft, impossible, split_ask
from generators.fillers import UnitBlock, UnitTable
from generators.lexicon import Lexicon
from generators.pieces import SPACE, Ids, Rows
from generators.rng import Stream
from generators.tokenizer import Tokenizer
from generators.words import LFS_MARKER
from harness.errors import InputError
from harness.regular import read_regular

_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=\S)")
_UNIT_CHARACTERS = 400
_CHUNK_CHARACTERS = 4096
# The cut is looked for in a region that ends at a multiple of so many chunks.
_CHUNKS = 64
_SAMPLE_CHARACTERS = 1 << 15
_PIECES_AT_ONCE = 1024
_SLACK_TOKENS = 64
# What may stand where a document was cut: one of them makes the length exact where no cut alone does.
_CUT_MARKS = ("", " ...", "\n...", *("." * count for count in range(1, 7)), *(" ." * n for n in range(1, 9)))


class TooShortError(InputError):
    """A document or background holds fewer tokens than are needed."""


def read_text(path: Path) -> str:
    """A UTF-8 text file, byte for byte but for a byte-order mark.

    Raises:
        InputError: the file is missing, not UTF-8, or a Git LFS pointer.
    """
    try:
        text = read_regular(path).decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}): convert it first.") from error
    if text.startswith(LFS_MARKER):
        raise InputError(f"{path} is a Git LFS pointer, not the text: fetch it with `git lfs pull`.")
    return text


def expand(paths: Sequence[str], suffix: str = ".txt") -> list[Path]:
    """The files meant by paths: a folder stands for its files that end in `suffix`, in order of their names.

    Raises:
        InputError: nothing is there.
    """
    found: list[Path] = []
    for name in paths:
        path = Path(name).expanduser()
        if path.is_dir():
            found += sorted(path.rglob(f"*{suffix}"), key=lambda p: p.relative_to(path).as_posix())
        elif path.is_file():
            found.append(path)
        else:
            raise InputError(f"There is no file or folder {name}.")
    if not found:
        raise InputError(f"No {suffix} files in {', '.join(paths)}.")
    return found


def split_sentences(text: str) -> list[str]:
    """Text as consecutive pieces that each, but for the first, start with a space.

    Pieces end after a sentence where sentences end in `.`, `!` or `?` and a space, and after some hundred
    characters where they do not. Joined, they are the text.
    """
    cuts = [match.start() for match in _SENTENCE_END.finditer(text)]
    out: list[str] = []
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        place = start
        while stop - place > 2 * _UNIT_CHARACTERS:
            space = SPACE.search(text, place + _UNIT_CHARACTERS, stop)
            if space is None and SPACE.search(text, place + 1, stop) is None:
                # No spaces at all (Chinese, a long token): split anywhere; the check corrects it.
                cut = place + _UNIT_CHARACTERS
            elif space is None:
                break
            else:
                cut = space.start()
            out.append(text[place:cut])
            place = cut
        if stop > place:
            out.append(text[place:stop])
    return out


class UserText:
    """Filler from a user's text: one passage of it, never repeated.

    Args:
        source: what the text is called in errors.
        leave_out: sentences in which this is found are passed over.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        text: str,
        stream: Stream,
        source: str,
        leave_out: re.Pattern[str] | None = None,
    ) -> None:
        self._tokenizer, self._stream, self._source = tokenizer, stream, source
        tokenizer.check_text(text)
        self._text, self._leave_out = text.strip(), leave_out

    def take(self, room_tokens: int) -> UnitBlock:
        """The sentences that fit, and words of the next one, from a random place that leaves enough.

        Raises:
            TooShortError: the text is shorter than that.
        """
        room = max(room_tokens, 0)
        sample = self._text[:_SAMPLE_CHARACTERS]
        per_token = len(sample) / max(len(self._tokenizer.piece_ids([" " + sample])[0]), 1)
        size = int(room * per_token * 1.1) + _SAMPLE_CHARACTERS
        start = self._stream.integer(0, max(len(self._text) - size, 0))
        while True:
            pieces, ids = self._sentences(start, size, room)
            if sum(map(len, ids)) >= room:
                break
            if start == 0 and size >= len(self._text):
                raise TooShortError(
                    f"{self._source} holds {sum(map(len, ids)):,} tokens of use here, but {room:,} tokens of"
                    " background are needed: give more text or ask for a shorter context."
                )
            start, size = (start, 2 * size) if start + size < len(self._text) else (0, len(self._text))
        return self._fitted(pieces, ids, room)

    def _sentences(self, start: int, size: int, room_tokens: int) -> tuple[list[str], list[Ids]]:
        """Sentences of a part of the text, and the ids of as many of them as make up the room."""
        first = _SENTENCE_END.search(self._text, start) if start else None
        window = self._text[first.start() if first else start : start + size]
        pieces = split_sentences(window if window.startswith(" ") else " " + window)
        pieces = [piece for piece in pieces if self._leave_out is None or not self._leave_out.search(piece)]
        ids: list[Ids] = []
        lexicon = Lexicon(self._tokenizer)
        tokens = 0
        while len(ids) < len(pieces) and tokens < room_tokens:
            batch = lexicon.long_rows(pieces[len(ids) : len(ids) + _PIECES_AT_ONCE])
            ids += batch
            tokens += sum(map(len, batch))
        return pieces, ids

    def _fitted(self, pieces: list[str], ids: list[Ids], room_tokens: int) -> UnitBlock:
        """As many pieces as fit, and the beginning of the next one."""
        ends = np.cumsum([len(row) for row in ids])
        fits = int(np.searchsorted(ends, room_tokens, side="right"))
        texts, rows = pieces[:fits], ids[:fits]
        left = room_tokens - (int(ends[fits - 1]) if fits else 0)
        if fits < len(ids) and left > 0:
            piece = pieces[fits]
            cuts = [match.start() for match in SPACE.finditer(piece)] or [*range(8, len(piece), 8)]
            parts = self._tokenizer.piece_ids([pieces[fits][:cut] for cut in cuts])
            whole = [i for i, row in enumerate(parts) if len(row) <= left and cuts[i]]
            if whole:
                texts, rows = [*texts, pieces[fits][: cuts[whole[-1]]]], [*rows, parts[whole[-1]]]
        bounds = np.arange(len(texts) + 1)
        return UnitBlock(UnitTable.of_rows(texts, Rows.of_list(rows)), bounds[:-1], bounds)


def chunk_ends(text: str, start: int) -> list[int]:
    """Places after `start`, every few thousand characters, where the text can be tokenised in parts."""
    ends = []
    place = start
    while place < len(text):
        space = SPACE.search(text, min(place + _CHUNK_CHARACTERS, len(text)))
        place = space.start() if space else len(text)
        ends.append(place)
    return ends


def _next_batch(counts: Sequence[int], want_tokens: int) -> int:
    """How many chunks to tokenise next: many at once, which is faster, but no more than are needed."""
    if not counts:
        return _CHUNKS
    missing = (want_tokens - sum(counts)) * len(counts) / max(sum(counts), 1)
    return max(int(missing * 0.95), _CHUNKS // 8)


def truncated(
    tokenizer: Tokenizer, *, head: str, document: str, ask: str, target_tokens: int
) -> tuple[Draft, int]:
    """A prompt of exactly `target_tokens` tokens: head, the document less its tail, question.

    Returns:
        The draft and how many characters of the document it holds.

    Raises:
        InputError: head and question alone are longer, or the document is too short.
    """
    near, rest = split_ask(ask)
    rest_ids = tokenizer.last_ids([rest], after=":")[0]
    needed = len(tokenizer.first_ids(head + near)) + len(rest_ids)
    if target_tokens < needed:
        raise impossible(target_tokens, needed, "instructions and question")
    body = head + document
    want = target_tokens - len(rest_ids)
    near_tokens = len(tokenizer.piece_ids([near], after="a")[0])
    ends = chunk_ends(body, len(head))
    pieces: list[Ids] = []
    lexicon = Lexicon(tokenizer)
    counts: list[int] = []
    while sum(counts) < want - near_tokens and len(pieces) < len(ends):
        batch = ends[len(pieces) : len(pieces) + _next_batch(counts, want - near_tokens)]
        starts = [ends[len(pieces) - 1] if pieces else 0, *batch[:-1]]
        texts = [body[a:b] for a, b in zip(starts, batch, strict=True)]
        if pieces:
            pieces += lexicon.long_rows(texts)
        else:
            pieces += [tokenizer.first_ids(texts[0]), *lexicon.long_rows(texts[1:])]
        counts = [len(ids) for ids in pieces]
    total = sum(counts)
    if total < want - near_tokens:
        raise TooShortError(
            f"The document comes to {total:,} tokens, but {want - near_tokens:,} are needed for a context of"
            f" {target_tokens:,}: choose a longer document or a shorter context."
        )
    # The cut falls into the last chunk or two; all before them stay as they are.
    reached = int(np.searchsorted(np.cumsum(counts), want - near_tokens)) + 1
    keep = max(int(np.searchsorted(np.cumsum(counts), want - near_tokens - 256)) - 1, 0)
    begin = ends[keep - 1] if keep else 0
    region = body[begin : ends[min(-(-reached // _CHUNKS) * _CHUNKS, len(ends)) - 1]]
    want_region = want - sum(counts[:keep])
    tokens_at = _Steps([0, *(end - begin for end in ends[keep : len(pieces)])], [0, *counts[keep:]])
    least = max(len(head) - begin, 0)
    for mark in _CUT_MARKS:
        found = _cut(tokenizer, region, mark + near, want_region, least, not keep, tokens_at)
        if found is not None:
            cut, ids = found
            text = body[: begin + cut]
            draft = Draft(text + mark + near + rest, np.concatenate([*pieces[:keep], ids, rest_ids]))
            return draft, len(text) - len(head)
    raise InputError(
        f"The document cannot be cut to exactly {target_tokens:,} tokens with this tokenizer: try another"
        " length."
    )


class _Steps:
    """About how many tokens a text has up to a character, from the counts of its parts.

    Args:
        ends: where the parts end, 0 first.
        counts: their tokens, 0 first.
    """

    def __init__(self, ends: Sequence[int], counts: Sequence[int]) -> None:
        self._ends, self._totals = np.asarray(ends), np.cumsum(counts)

    def surely_short(self, cut: int, want_tokens: int) -> bool | None:
        """Whether the text up to `cut` has fewer tokens than are wanted; None where that is too close."""
        part = int(np.searchsorted(self._ends, cut))
        if part == len(self._ends):
            return None
        # Parts may merge by a token or so, and a little text follows the cut.
        slack = _SLACK_TOKENS + 4 * part
        if self._totals[part] + slack < want_tokens:
            return True
        return False if self._totals[max(part - 1, 0)] - slack > want_tokens else None


def _cut(
    tokenizer: Tokenizer,
    region: str,
    near: str,
    want_tokens: int,
    least: int,
    opening: bool,
    tokens_at: _Steps,
) -> tuple[int, Ids] | None:
    """Where to cut `region` so that what is left and `near` are `want_tokens` tokens, and their ids."""

    def count(cut: int) -> Ids:
        text = region[:cut] + near
        return tokenizer.first_ids(text) if opening else tokenizer.piece_ids([text])[0]

    low, high = least, len(region)
    # Token counts grow with the cut but for small steps back where tokens merge: close in, then look around.
    while high - low > 16:
        middle = (low + high) // 2
        short = tokens_at.surely_short(middle, want_tokens)
        if len(count(middle)) < want_tokens if short is None else short:
            low = middle
        else:
            high = middle
    for distance in range(96):
        for cut in dict.fromkeys((high - distance, high + distance)):
            if least <= cut <= len(region):
                ids = count(cut)
                if len(ids) == want_tokens:
                    return cut, ids
    return None
