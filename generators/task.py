"""What every task's builder is given and gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Union, get_args, get_origin

from generators.assemble import Draft, exact
from generators.rng import Stream
from generators.tokenizer import Tokenizer
from harness.errors import ConfigError

# What a signed 64-bit word holds; records are JSON with numbers of that size.
LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Context:
    """The surroundings of one record."""

    tokenizer: Tokenizer
    context_tokens: int
    stream: Stream
    seed: int
    index: int
    check: bool

    def exact(self, plan: Callable[[int, int], Draft]) -> Draft:
        """The plan's draft with exactly `context_tokens` tokens (see `assemble.exact`)."""
        return exact(self.tokenizer, self.context_tokens, plan, check=self.check)


@dataclass(frozen=True)
class Built:
    """A finished draft and its answers.

    Attributes:
        draft: message, ids, needles.
        gold: right answers in the order asked for.
        details: what scoring and audits need besides.
        exact: False for inputs used as they are, whatever their length.
        cost_only: True where no answer is right.
        family: replaces the task's family in the record.
    """

    draft: Draft
    gold: list[str]
    details: dict[str, Any] = field(default_factory=dict)
    exact: bool = True
    cost_only: bool = False
    family: str | None = None


def at_least(name: str, value: int, least: int = 1, most: int = LARGEST) -> int:
    """Check a whole-number parameter.

    Raises:
        ConfigError: it is no whole number, too small or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number of at least {least}.")
    if value > most:
        raise ConfigError(f"{name}={value} must be a whole number of at most {most}.")
    return value


def suits(value: Any, hint: Any) -> bool:
    """Whether a parameter's value is of the kind that a builder's signature names."""
    if get_origin(hint) in {Union, UnionType}:
        return any(suits(value, each) for each in get_args(hint))
    if get_origin(hint) is Sequence:
        return isinstance(value, list | tuple) and all(suits(each, get_args(hint)[0]) for each in value)
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, hint)


def called(hint: Any, name: str = "") -> str:
    """The kind of value that a signature's annotation stands for, in words.

    Args:
        name: of the parameter; a list, which here is one of files, then comes with an example.
    """
    if get_origin(hint) in {Union, UnionType}:
        return " or ".join(called(each, name) for each in get_args(hint))
    if get_origin(hint) is Sequence:
        example = f", such as {name}=[a.txt,b.txt]" if name else ""
        return f"a list [...] each item of which is {called(get_args(hint)[0])}{example}"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, "null")


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Check a parameter that names one of a few choices.

    Raises:
        ConfigError: it is none of them.
    """
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is unknown: choose {', '.join(choices)}.")
    return value
