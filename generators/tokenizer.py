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
import tokenizers
from numpy.typing import NDArray

from generators.chat import find_template, read_config, render_frame
from harness.errors import InputError

T = TypeVar("T")
Ids = NDArray[np.uint32]
_MARK_OPEN, _MARK_CLOSE = "\ue000", "\ue001"
_SEPARATOR, _GAP = "\ue004", "\ue005"
_RESERVED = re.compile(f"{_MARK_OPEN}[0-9]+{_MARK_CLOSE}|{_SEPARATOR}")
_PIECES_AT_ONCE = 4096
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
    place = Path(path)
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
    """

    def __init__(
        self, path: str, source: bytes, config: Mapping[str, Any], frame: tuple[str, str] | None
    ) -> None:
        self.path = path
        self.before, self.after = frame or ("", "")
        spec = _parse(path, source)
        self._added = _added_tokens(spec, config)
        self._prefix, self._suffix = ((), ()) if frame else _wrapping_ids(spec)
        digest = hashlib.sha256(source)
        digest.update(json.dumps([self.before, self.after, bool(frame)]).encode())
        self.fingerprint = digest.hexdigest()
        self._tokenizer, self._to_real = _with_markers(spec, self._added)
        separator = self._tokenizer.token_to_id(_SEPARATOR)
        assert separator is not None  # _with_markers added it
        self._separator_id = separator
        size = 1 + max([self._tokenizer.get_vocab_size(), separator, *self._to_real, *self._added.values()])
        self._real = np.arange(size, dtype=np.uint32)
        self._real[list(self._to_real)] = list(self._to_real.values())
        # A special token's own id can come from plain text only where the vocabulary spells it out.
        self._forbidden = np.zeros(size, dtype=bool)
        unknown = _unknown_id(spec)
        self._forbidden[[i for i in self._added.values() if i not in self._to_real and i != unknown]] = True
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
        return cls(str(path), main.read_bytes(), config, frame)

    @property
    def plain_ids(self) -> Ids:
        """All ids of ordinary tokens, ascending: neither special nor otherwise added."""
        added = set(self._added.values())
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=False).items()
        return as_ids(sorted({i for token, i in vocabulary if not token.startswith(_GAP)} - added))

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
            joined = _SEPARATOR + "".join(f"{after}{piece}{_SEPARATOR}" for piece in group)
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
        if match := _RESERVED.search(text):
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
        return re.sub(pattern, lambda match: f"{_MARK_OPEN}{self._added[match.group()]}{_MARK_CLOSE}", frame)

    def _content_of(self, token_id: int) -> str:
        return next(content for content, i in self._added.items() if i == token_id)


def _parse(path: str, source: bytes) -> dict[str, Any]:
    try:
        spec = json.loads(source)
    except ValueError as error:
        pointer = source.startswith(b"version https://git-lfs")
        why = "a Git LFS pointer; fetch the file with `git lfs pull`" if pointer else f"not JSON ({error})"
        raise InputError(f"The tokenizer at {path} is {why}.") from error
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict) or "vocab" not in spec["model"]:
        raise InputError(f"The file at {path} is not a Hugging Face tokenizer.json: it has no vocabulary.")
    return spec


def _added_tokens(spec: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, int]:
    """Added tokens by content; `tokenizer_config.json` may know some that tokenizer.json lacks."""
    added = {token["content"]: int(token["id"]) for token in spec.get("added_tokens") or []}
    vocabulary = spec["model"]["vocab"]
    if not isinstance(vocabulary, dict):
        vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
    taken = set(vocabulary.values())
    for content, number in added.items():
        if vocabulary.get(content, number) != number or (content not in vocabulary and number in taken):
            raise InputError(
                f"The tokenizer contradicts itself: its added token {content!r} has the id {number}, which"
                " its vocabulary gives otherwise."
            )
    for number_text, token in (config.get("added_tokens_decoder") or {}).items():
        added.setdefault(token["content"], int(number_text))
    return {content: number for content, number in added.items() if content}


def _unknown_id(spec: Mapping[str, Any]) -> int | None:
    model = spec["model"]
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    vocab = model["vocab"]
    return vocab.get(model.get("unk_token")) if isinstance(vocab, dict) else None


def _without_gaps(model: Mapping[str, Any]) -> dict[str, Any]:
    """The model with unused ids filled: a new token's id is the size of the vocabulary."""
    vocabulary = model["vocab"]
    if not isinstance(vocabulary, dict):
        return dict(model)
    used = set(vocabulary.values())
    gaps = {f"{_GAP}{number}{_GAP}": number for number in range(max(used, default=0)) if number not in used}
    return {**model, "vocab": {**vocabulary, **gaps}}


def _with_markers(
    spec: Mapping[str, Any], added: Mapping[str, int]
) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
    """The tokenizer with its added tokens renamed, and their real ids by the ids of the markers."""
    flags = {token["content"]: token for token in spec.get("added_tokens") or []}
    default = {"single_word": False, "lstrip": False, "rstrip": False}
    markers = {f"{_MARK_OPEN}{number}{_MARK_CLOSE}": content for content, number in added.items()}
    # Limits or padding saved with a tokenizer must not cut or stretch prompts.
    model = _without_gaps(spec["model"])
    bare = {
        **spec,
        "model": model,
        "added_tokens": [],
        "truncation": None,
        "padding": None,
        "post_processor": None,
    }
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(bare))
    tokenizer.add_special_tokens(
        [
            tokenizers.AddedToken(
                marker, normalized=False, **{name: flags.get(content, default)[name] for name in default}
            )
            for marker, content in markers.items()
        ]
    )
    tokenizer.add_special_tokens([tokenizers.AddedToken(_SEPARATOR, normalized=False)])
    vocabulary = tokenizer.get_vocab()
    return tokenizer, {vocabulary[marker]: added[content] for marker, content in markers.items()}


def _wrapping_ids(spec: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the tokenizer itself puts around a text (BOS, EOS) where no chat template does."""
    if not spec.get("post_processor"):
        return (), ()
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps({**spec, "truncation": None, "padding": None}))
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a").ids
    start = next((i for i in range(len(full) - len(bare) + 1) if full[i : i + len(bare)] == bare), 0)
    return tuple(full[:start]), tuple(full[start + len(bare) :])
