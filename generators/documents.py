"""Texts of a user: reading them, cutting them into filler, and truncating a document to an exact length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from generators.assemble import Draft, impossible, split_ask
from generators.fillers import UnitBlock, UnitTable
from generators.rng import Stream
from generators.tokenizer import Ids, Tokenizer
from generators.words import LFS_MARKER
from harness.errors import InputError

# A space between non-spaces; pre-tokenisers always split before it.
_SPACE = re.compile(r"(?<=\S) (?=\S)")
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=\S)")
_UNIT_CHARACTERS = 400
_CHUNK_CHARACTERS = 4096
_BATCH_CHARACTERS = 1 << 18


def read_text(path: Path) -> str:
    """A UTF-8 text file, byte for byte but for a byte-order mark.

    Raises:
        InputError: the file is missing, not UTF-8, or a Git LFS pointer.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
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
            space = _SPACE.search(text, place + _UNIT_CHARACTERS, stop)
            if space is None and _SPACE.search(text, place + 1, stop) is None:
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
    """Filler from a user's text: one passage of it, never repeated."""

    def __init__(self, tokenizer: Tokenizer, text: str, stream: Stream, source: str) -> None:
        self._tokenizer, self._stream, self._source = tokenizer, stream, source
        tokenizer.check_text(text)
        self._pieces = split_sentences(text.strip())

    def take(self, room_tokens: int) -> UnitBlock:
        """The sentences that fit, from a random place that leaves enough.

        Raises:
            InputError: the text is shorter than that.
        """
        pieces = self._pieces
        if pieces and not pieces[0].startswith(" "):
            pieces = [" " + pieces[0], *pieces[1:]]
        sizes = np.asarray([len(piece) for piece in pieces], dtype=np.int64)
        sample = pieces[: max(int(np.searchsorted(np.cumsum(sizes), 1 << 16)), 1)]
        tokens = sum(map(len, self._tokenizer.piece_ids(sample)))
        need = int(max(room_tokens, 0) * sum(map(len, sample)) / max(tokens, 1) * 1.15) + 4096
        latest = int(np.searchsorted(np.cumsum(sizes[::-1]), need))
        start = self._stream.integer(0, max(len(pieces) - 1 - latest, 0))
        for first in dict.fromkeys((start, 0)):
            block, total = self._from(pieces, sizes, first, room_tokens)
            if total >= room_tokens:
                return block.first(room_tokens)
        raise InputError(
            f"{self._source} holds {total:,} tokens, but {room_tokens:,} tokens of background are needed:"
            " give more text or ask for a shorter context."
        )

    def _from(
        self,
        pieces: list[str],
        sizes: np.ndarray[tuple[int], np.dtype[np.int64]],
        first: int,
        room_tokens: int,
    ) -> tuple[UnitBlock, int]:
        ends = np.cumsum(sizes)
        ids: list[Ids] = []
        total, place = 0, first
        while place < len(pieces) and total < room_tokens:
            goal = (ends[place - 1] if place else 0) + _BATCH_CHARACTERS
            stop = max(int(np.searchsorted(ends, goal)), place + 1)
            batch = self._tokenizer.piece_ids(pieces[place:stop])
            ids += batch
            total += sum(map(len, batch))
            place = stop
        table = UnitTable.of_ids(pieces[first:place], ids)
        bounds = np.arange(place - first + 1)
        return UnitBlock(table, bounds[:-1], bounds), total


def chunk_ends(text: str, start: int) -> list[int]:
    """Places after `start`, every few thousand characters, where the text can be tokenised in parts."""
    ends = []
    place = start
    while place < len(text):
        space = _SPACE.search(text, min(place + _CHUNK_CHARACTERS, len(text)))
        place = space.start() if space else len(text)
        ends.append(place)
    return ends


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
    counts: list[int] = []
    while sum(counts) < want - near_tokens and len(pieces) < len(ends):
        batch = ends[len(pieces) : len(pieces) + _BATCH_CHARACTERS // _CHUNK_CHARACTERS]
        starts = [ends[len(pieces) - 1] if pieces else 0, *batch[:-1]]
        texts = [body[a:b] for a, b in zip(starts, batch, strict=True)]
        if pieces:
            pieces += tokenizer.piece_ids(texts)
        else:
            pieces += [tokenizer.first_ids(texts[0]), *tokenizer.piece_ids(texts[1:])]
        counts = [len(ids) for ids in pieces]
    total = sum(counts)
    if total < want - near_tokens:
        raise InputError(
            f"The document comes to {total:,} tokens, but {want - near_tokens:,} are needed for a context of"
            f" {target_tokens:,}: choose a longer document or a shorter context."
        )
    # The cut falls into the last chunk or two; all before them stay as they are.
    keep = max(int(np.searchsorted(np.cumsum(counts), want - near_tokens - 256)) - 1, 0)
    begin = ends[keep - 1] if keep else 0
    region = body[begin : ends[min(len(pieces), len(ends)) - 1]]
    cut, ids = _cut(tokenizer, region, near, want - sum(counts[:keep]), max(len(head) - begin, 0), not keep)
    text = body[: begin + cut]
    draft = Draft(text + near + rest, np.concatenate([*pieces[:keep], ids, rest_ids]))
    return draft, len(text) - len(head)


def _cut(
    tokenizer: Tokenizer, region: str, near: str, want_tokens: int, least: int, opening: bool
) -> tuple[int, Ids]:
    """Where to cut `region` so that what is left and `near` are `want_tokens` tokens, and their ids."""

    def count(cut: int) -> Ids:
        text = region[:cut] + near
        return tokenizer.first_ids(text) if opening else tokenizer.piece_ids([text])[0]

    low, high = least, len(region)
    # Token counts grow with the cut but for small steps back where tokens merge: close in, then look around.
    while high - low > 16:
        middle = (low + high) // 2
        if len(count(middle)) < want_tokens:
            low = middle
        else:
            high = middle
    for distance in range(512):
        for cut in dict.fromkeys((high - distance, high + distance)):
            if least <= cut <= len(region):
                ids = count(cut)
                if len(ids) == want_tokens:
                    return cut, ids
    raise InputError(
        "The document cannot be cut to this exact length with this tokenizer: try another length."
    )
