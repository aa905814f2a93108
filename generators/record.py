"""One finished input and what is known about it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from generators.pieces import Ids
from generators.tokenizer import as_ids, ids_sha256
from harness.errors import InputError

GENERATOR_VERSION = "1"


@dataclass(frozen=True)
class Needle:
    """A sentence that the answer rests on, or that imitates one.

    Attributes:
        token_offset: place in `input_ids` of its first token (the space before the sentence included).
        token_count: its tokens.
        char_offset: place in the record's text of the sentence's first character.
        text: the sentence, without the space before it.
        key, value: what it says about what.
    """

    token_offset: int
    token_count: int
    char_offset: int
    text: str
    key: str = ""
    value: str = ""


@dataclass(frozen=True)
class Record:
    """One input of exactly `context_tokens` tokens.

    Attributes:
        task: task name; family: the public benchmark whose definition it follows, or what it is instead.
        params: every parameter, defaults included.
        context_tokens: length asked for; `exact` is False only for inputs that are used as they are.
        input_ids: what is sent, chat frame and generation prompt included; shape (tokens,), uint32.
        text: the same prompt as text; empty for random ids.
        content_span: characters of `text` between the chat template's parts: the user message.
        gold: right answers, in the order in which they were asked for.
        details: what scoring and audits need besides (question, keys, choices, sources).
        cost_only: True where no answer is right, so only speed may be read from it.
    """

    task: str
    family: str
    params: dict[str, Any]
    seed: int
    index: int
    context_tokens: int
    input_ids: Ids
    text: str
    content_span: tuple[int, int]
    gold: list[str]
    needles: list[Needle]
    details: dict[str, Any]
    tokenizer_sha256: str
    exact: bool = True
    cost_only: bool = False
    generator_version: str = GENERATOR_VERSION
    text_sha256: str = field(init=False)
    ids_sha256: str = field(init=False)
    sample_id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text_sha256", hashlib.sha256(self.text.encode()).hexdigest())
        object.__setattr__(self, "ids_sha256", ids_sha256(self.input_ids))
        hashes = [self.text_sha256, self.ids_sha256]
        identity = [self.task, self.seed, self.index, self.params, *hashes, self.gold]
        digest = hashlib.sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).hexdigest()
        object.__setattr__(self, "sample_id", f"{self.task}-{self.seed}-{self.index}-{digest[:16]}")

    @property
    def token_count(self) -> int:
        """True length in tokens."""
        return len(self.input_ids)

    @property
    def sources(self) -> str:
        """Whose text it holds where no parameter says so: another interpreter's library is another text."""
        python = self.details.get("python")
        return f"standard library of Python {python}" if python else ""

    @property
    def content(self) -> str:
        """The user message."""
        return self.text[slice(*self.content_span)]

    def summary(self) -> dict[str, Any]:
        """Everything but text and ids, as plain JSON types: a line of the manifest."""
        out = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in {"input_ids", "text", "needles", "content_span"}
        }
        out["content_span"] = list(self.content_span)
        out["token_count"] = self.token_count
        out["needles"] = [asdict(needle) for needle in self.needles]
        return out

    def to_json(self) -> bytes:
        """One JSONL line, without the line break; keys sorted, so equal records are equal bytes."""
        line = {**self.summary(), "text": self.text, "input_ids": self.input_ids}
        return orjson.dumps(line, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)

    @classmethod
    def from_json(cls, line: bytes | str) -> Record:
        """Read a line that `to_json` wrote; stored hashes are not trusted but computed again.

        Raises:
            InputError: the line is damaged or lacks a field.
        """
        try:
            data = orjson.loads(line)
            data["input_ids"] = as_ids(data["input_ids"])
            data["needles"] = [Needle(**needle) for needle in data["needles"]]
            data["content_span"] = tuple(data["content_span"])
            names = [name for name, f in cls.__dataclass_fields__.items() if f.init]
            return cls(**{name: data[name] for name in names})
        except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"This is not a record of the generators ({reason}).") from error


def as_mapping(record: Record | Mapping[str, Any]) -> Mapping[str, Any]:
    """A record's summary, whichever form it comes in."""
    return record.summary() if isinstance(record, Record) else record
