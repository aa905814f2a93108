"""What every task's builder is given and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from generators.assemble import Draft, exact
from generators.rng import Stream
from generators.tokenizer import Tokenizer
from harness.errors import ConfigError


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


def at_least(name: str, value: int, least: int = 1) -> int:
    """Check a whole-number parameter.

    Raises:
        ConfigError: it is no whole number or too small.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number of at least {least}.")
    return value


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Check a parameter that names one of a few choices.

    Raises:
        ConfigError: it is none of them.
    """
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is unknown: choose {', '.join(choices)}.")
    return value
