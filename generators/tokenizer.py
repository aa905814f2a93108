"""Token ids of prompts, piece by piece and whole, for any Hugging Face fast tokenizer.

Two kinds of text meet in a prompt. The chat frame's special tokens are one id each; the same characters
inside a document are plain text and must not become special. So the tokenizer is loaded with every added
token renamed to a private marker: the frame is written with markers, and no document can contain a special
token.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from generators.chat import find_template, read_config, render_frame
from generators.pieces import Ids, Rows, byte_ends, cut, stand_alone, token_bytes
from generators.tokenizer_spec import (
    GAP,
    MARK_CLOSE,
    MARK_OPEN,
    SEPARATOR,
    added_tokens,
    parse,
    unknown_id,
    with_markers,
    wrapping_ids,
)
from harness.errors import HarnessError, InputError

T = TypeVar("T")
_RESERVED = re.compile(f"{MARK_OPEN}[0-9]+{MARK_CLOSE}|{SEPARATOR}")
_PIECES_AT_ONCE = 4096
_JOINED_AT_ONCE = 32768
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")


def as_ids(ids: Sequence[int] | Ids) -> Ids:
    """Token ids as an array."""
    return np.asarray(ids, dtype=np.uint32)


def same_ids(a: Ids, b: Ids) -> bool:
    """Whether two token id arrays are equal."""
    return len(a) == len(b) and bool(np.array_equal(a, b))


def ids_sha256(ids: Ids) -> str:
    """SHA-256 of token ids, as little-endian 32-bit words."""
    return hashlib.sha256(ids.astype("<u4").tobytes()).hexdigest()


def tokenizer_files(path: str | Path) -> list[Path]:
    """The files that define the tokenizer at `path`: a folder, a `tokenizer.json`, `tiny`, or a Hub id.

    Raises:
        InputError: there is no `tokenizer.json`.
    """
    place = Path(path).expanduser()
    if str(path) in {"tiny", "package:tiny"}:
        harness = find_spec("harness")
        place = Path(harness.origin if harness and harness.origin else "").parent / "engine/tiny/checkpoint"
    if not place.exists() and _HUB_ID.fullmatch(str(path)):
        place = _from_hub(str(path))
    main = place / "tokenizer.json" if place.is_dir() else place
    if not main.is_file():
        raise InputError(
            f"There is no tokenizer.json at {path}: give a Hugging Face fast tokenizer's folder or that file."
        )
    return [main, *(main.parent / name for name in _TOKENIZER_FILES[1:] if (main.parent / name).is_file())]


def _from_hub(repository: str) -> Path:
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415 (only where a Hub id is given)

        return Path(snapshot_download(repository, allow_patterns=list(_TOKENIZER_FILES)))
    except Exception as error:
        raise InputError(f"The tokenizer of {repository} is neither here nor on the Hub: {error}") from error


class Tokenizer:
    """A fast tokenizer with its model's chat frame.

    Attributes:
        path: where it was loaded from, as given.
        fingerprint: SHA-256 of tokenizer.json and of the chat frame; equal fingerprints give equal prompts.
        before, after: text that the chat template puts around the user message.
        additive: False once a piece was seen to merge with the text before it.
        splits_before_spaces: True where tokens are known not to reach over a single space between words.
    """

    def __init__(
        self, path: str, source: bytes, config: Mapping[str, Any], frame: tuple[str, str] | None
    ) -> None:
        self.path = path
        self.before, self.after = frame or ("", "")
        spec = parse(path, source)
        self._added = added_tokens(spec, config)
        self._prefix, self._suffix = ((), ()) if frame else wrapping_ids(spec)
        digest = hashlib.sha256(source)
        digest.update(json.dumps([self.before, self.after, bool(frame)]).encode())
        self.fingerprint = digest.hexdigest()
        self._tokenizer, self._to_real = with_markers(spec, self._added)
        separator = self._tokenizer.token_to_id(SEPARATOR)
        assert separator is not None  # with_markers added it
        self._separator_id = separator
        size = 1 + max([self._tokenizer.get_vocab_size(), separator, *self._to_real, *self._added.values()])
        self._real = np.arange(size, dtype=np.uint32)
        self._real[list(self._to_real)] = list(self._to_real.values())
        # A special token's own id can come from plain text only where the vocabulary spells it out.
        self._forbidden = np.zeros(size, dtype=bool)
        unknown = unknown_id(spec)
        self._forbidden[[i for i in self._added.values() if i not in self._to_real and i != unknown]] = True
        self._lengths = token_bytes(spec, self._added, self._tokenizer, size)
        self.splits_before_spaces = self._lengths is not None
        self.additive = True
        self._cache: dict[str, Any] = {}
        self._frame_before, self._frame_after = self._mark(self.before), self._mark(self.after)

    @classmethod
    def load(cls, path: str | Path, *, template_options: Mapping[str, Any] | None = None) -> Tokenizer:
        """Read a tokenizer.

        Args:
            path: folder or `tokenizer.json` of a Hugging Face fast tokenizer, `tiny` for the shipped model's,
                or a Hub id.
            template_options: variables for the chat template, such as {"enable_thinking": False}.

        Raises:
            InputError: no usable tokenizer there, or its chat template fails.
        """
        main = tokenizer_files(path)[0]
        config = read_config(main.parent)
        template = find_template(main.parent, config)
        frame = None if template is None else render_frame(template, config, template_options or {})
        try:
            return cls(str(path), main.read_bytes(), config, frame)
        except HarnessError:
            raise
        except Exception as error:  # the library and odd files raise all kinds
            raise InputError(
                f"The tokenizer at {path} is damaged, or of a kind that the tokenizers library here cannot"
                f" read ({type(error).__name__}: {error})."
            ) from error

    @property
    def plain_ids(self) -> Ids:
        """All ids of ordinary tokens, ascending: neither special nor otherwise added."""
        added = set(self._added.values())
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=False).items()
        return as_ids(sorted({i for token, i in vocabulary if not token.startswith(GAP)} - added))

    def encode(self, content: str) -> Ids:
        """The ids of a whole prompt: chat frame, `content`, generation prompt.

        Raises:
            InputError: `content` cannot be encoded (see `check_text`).
        """
        self.check_text(content)
        encoding = self._encode([self._frame_before + content + self._frame_after])[0]
        return self._wrap(self._checked(encoding))

    def encode_with_offsets(self, content: str) -> tuple[Ids, NDArray[np.int64], NDArray[np.int64]]:
        """`encode` and, for each id, where its token starts and ends in the prompt's text, in characters."""
        self.check_text(content)
        marked = self._frame_before + content + self._frame_after
        encoding = self._tokenizer.encode(marked, add_special_tokens=False)
        spans = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        # Markers and the tokens they stand for differ in length.
        shift = np.zeros(len(marked) + 1, dtype=np.int64)
        for match in _RESERVED.finditer(marked):
            token = self._content_of(int(match.group()[1:-1]))
            shift[match.end() :] += len(token) - len(match.group())
        spans += shift[spans]
        size = len(self.text(content))
        before = np.zeros((len(self._prefix), 2), dtype=np.int64)
        behind = np.full((len(self._suffix), 2), size, dtype=np.int64)
        spans = np.concatenate([before, spans, behind])
        return self._wrap(self._checked(encoding.ids)), spans[:, 0], spans[:, 1]

    def text(self, content: str) -> str:
        """The text of a whole prompt."""
        return self.before + content + self.after

    def separate_ids(self, pieces: Sequence[str], after: str = ".") -> list[Ids | None]:
        """The ids of each piece as they stand in a text where `after` comes before it.

        None for a piece that merges with `after`, so that it has no ids of its own.

        Raises:
            InputError: a piece cannot be encoded.
        """
        lead = as_ids(self._encode([after])[0])
        found: list[Ids | None] = []
        for first in range(0, len(pieces), _PIECES_AT_ONCE):
            group = pieces[first : first + _PIECES_AT_ONCE]
            # The separator is an added token, at which the text is split before anything else.
            joined = SEPARATOR + "".join(f"{after}{piece}{SEPARATOR}" for piece in group)
            raw = as_ids(self._encode([joined])[0])
            ids = self._checked(raw)
            cuts = np.flatnonzero(raw == self._separator_id)
            if len(cuts) != len(group) + 1:
                raise InputError("A piece of text holds the private-use character U+E004. Drop it.")
            for start, stop in pairwise(cuts.tolist()):
                body = ids[start + 1 : stop]
                alone = same_ids(body[: len(lead)], lead)
                found.append(body[len(lead) :] if alone else None)
        return found

    def piece_rows(self, pieces: Sequence[str]) -> Rows:
        """`piece_ids` for many pieces."""
        groups = [pieces[i : i + _JOINED_AT_ONCE] for i in range(0, len(pieces), _JOINED_AT_ONCE)]
        found = []
        for group in groups:
            rows = self._joined_rows(group)
            found.append(Rows.of_list(self.piece_ids(group)) if rows is None else rows)
        if len(found) == 1:
            return found[0]
        flat = np.concatenate([as_ids([]), *(rows.flat for rows in found)])
        return Rows.of(flat, np.concatenate([np.zeros(0, dtype=np.int64), *(rows.count for rows in found)]))

    def _joined_rows(self, pieces: Sequence[str]) -> Rows | None:
        """The ids of pieces from those of the text that they make up, where that can be cut for certain."""
        if self._lengths is None or not stand_alone(pieces):
            return None
        lead = "."
        ends = byte_ends(pieces, len(lead))
        if ends is None:
            return None
        raw = as_ids(self._encode([lead + "".join(pieces)])[0])
        places = cut(raw, self._lengths, len(lead), ends)
        if places is None:
            return None
        return Rows.of(self._checked(raw)[places[0] :], np.diff(places))

    def piece_ids(self, pieces: Sequence[str], after: str = ".") -> list[Ids]:
        """`separate_ids` where pieces are meant to have ids of their own.

        Where one has not, `additive` becomes False and its ids, those of the piece alone, are near the truth.
        """
        found = []
        for piece, ids in zip(pieces, self.separate_ids(pieces, after), strict=True):
            self.additive &= ids is not None
            found.append(self._checked(self._encode([piece])[0]) if ids is None else ids)
        return found

    def first_ids(self, opening: str) -> Ids:
        """The ids of the chat frame before the message and the message's opening."""
        self.check_text(opening)
        ids = self._checked(self._encode([self._frame_before + opening])[0])
        return np.concatenate([as_ids(self._prefix), ids])

    def last_ids(self, closings: Sequence[str], after: str = ".") -> list[Ids]:
        """The ids of each possible end of a message and the chat frame after it, `after` coming before."""
        suffix = as_ids(self._suffix)
        return [
            np.concatenate([ids, suffix])
            for ids in self.piece_ids([closing + self._frame_after for closing in closings], after)
        ]

    def cached(self, name: str, make: Callable[[], T]) -> T:
        """What `make` returned when it was first asked for under this name."""
        if name not in self._cache:
            self._cache[name] = make()
        value: T = self._cache[name]
        return value

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens written out."""
        markers = {real: marker for marker, real in self._to_real.items()}
        text = self._tokenizer.decode([markers.get(int(i), int(i)) for i in ids], skip_special_tokens=False)
        return str(_RESERVED.sub(lambda match: self._content_of(int(match.group()[1:-1])), text))

    def check_text(self, text: str) -> None:
        """Refuse text that no tokenizer can take, or that imitates the private markers.

        Raises:
            InputError: a lone surrogate or a marker is in the text.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"The text has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start};"
                " it is not valid Unicode. Repair or drop that character."
            ) from error
        if not text.isascii() and (match := _RESERVED.search(text)):
            raise InputError(
                f"The text has the private-use sequence {match.group()!r} at character {match.start()},"
                " which is reserved here. Drop it from the text."
            )

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [e.ids for e in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _checked(self, ids: Sequence[int] | Ids) -> Ids:
        array = as_ids(ids)
        if self._forbidden[array].any():
            token = self._content_of(int(array[self._forbidden[array]][0]))
            raise InputError(
                f"The text spells the special token {token!r}, which this tokenizer cannot write as plain"
                " text. Choose another text or remove it."
            )
        return self._real[array]

    def _wrap(self, ids: Ids) -> Ids:
        return np.concatenate([as_ids(self._prefix), ids, as_ids(self._suffix)])

    def _mark(self, frame: str) -> str:
        """Frame text with each added token written as its marker, the longest first as tokenizers match."""
        if not self._added:
            return frame
        names = sorted(self._added, key=len, reverse=True)
        pattern = "|".join(re.escape(name) for name in names)
        return re.sub(pattern, lambda match: f"{MARK_OPEN}{self._added[match.group()]}{MARK_CLOSE}", frame)

    def _content_of(self, token_id: int) -> str:
        return next(content for content, i in self._added.items() if i == token_id)
