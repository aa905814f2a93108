"""RULER's variable tracing: which variables hold a value, directly or through others.

Differs from RULER in the words of the prompt and in having no worked example before the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from generators.assemble import Draft, haystack, impossible
from generators.fillers import Prose
from generators.task import Built, Context, at_least
from generators.templates import VT_ASK, VT_COPY, VT_HEAD, VT_SET, fill

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NAME_LENGTH = 5
# No assignment is shorter.
_NEEDLE_TOKENS = 5


def check(params: Mapping[str, Any]) -> None:
    """Refuse counts that make no chain.

    Raises:
        ConfigError: names one and what it must be.
    """
    at_least("chains", params["chains"])
    at_least("hops", params["hops"])


def variables(context: Context, *, chains: int = 1, hops: int = 4) -> Built:
    """Chains of assignments through a text; the variables of the first one are asked for.

    Args:
        chains: independent chains, each with its own value.
        hops: assignments from a variable in each chain; a chain has hops + 1 variables.
    """
    count = chains * (hops + 1)
    if count > context.context_tokens:
        raise impossible(context.context_tokens, count * _NEEDLE_TOKENS, f"{count:,} assignments")
    stream = context.stream.child("variables")
    names = [_name(number) for number in stream.distinct(26**_NAME_LENGTH, count)]
    values = [str(10_000 + number) for number in stream.distinct(90_000, chains)]
    chain = [names[i * (hops + 1) : (i + 1) * (hops + 1)] for i in range(chains)]
    # A shuffled list of chain numbers says whose turn it is; within a chain the order stays.
    turns = stream.shuffled([number for number in range(chains) for _ in range(hops + 1)])
    seen = [0] * chains
    needles = []
    for number in turns:
        step = seen[number]
        needles.append(_assignment(chain[number], step, values[number]))
        seen[number] += 1
    words = {"value": values[0], "count": hops + 1}

    def plan(aim: int, attempt: int) -> Draft:
        stream = context.stream.child("plan")
        return haystack(
            context.tokenizer,
            head=VT_HEAD,
            needles=needles,
            ask=fill(VT_ASK, words),
            filler=Prose(context.tokenizer, stream),
            target_tokens=aim,
            stream=stream,
            attempt=attempt,
        )

    question = fill(VT_ASK, words).strip()
    return Built(context.exact(plan), chain[0], {"question": question, "value": values[0], "unique": "keys"})


def _assignment(names: Sequence[str], step: int, value: str) -> tuple[str, str, str]:
    if step == 0:
        return fill(VT_SET, {"name": names[0], "value": value}), names[0], value
    return fill(VT_COPY, {"name": names[step], "source": names[step - 1]}), names[step], names[step - 1]


def _name(number: int) -> str:
    letters = []
    for _ in range(_NAME_LENGTH):
        number, letter = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[letter])
    return "".join(letters)
