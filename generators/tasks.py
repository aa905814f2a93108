"""The tasks by name, and building one record of any."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import orjson

from generators import aggregation, babilong, code_qa, niah, plain, tracing
from generators.record import GENERATOR_VERSION, Record
from generators.rng import Stream
from generators.scoring import opens_thinking
from generators.task import Built, Context, at_least, called, suits
from generators.tokenizer import Tokenizer
from harness.errors import ConfigError

REQUIRED = inspect.Parameter.empty
# 64 times the paper's: a mistyped number should not fill the memory before it fails.
LARGEST_CONTEXT = 1 << 26
# Other texts are names and paths, where an empty one would be something else without a word.
_MAY_BE_EMPTY = frozenset({"joiner"})


@dataclass(frozen=True)
class Task:
    """A task: whose definition it follows, its builder, and the check of its parameters.

    `sources` says whose text is read where no parameter does, as it is on this machine.
    `check` needs no tokenizer and no length: a sweep is refused when planned, not after a server start.
    """

    family: str
    builder: Callable[..., Built]
    check: Callable[[Mapping[str, Any]], None] = lambda params: None
    sources: Callable[[Mapping[str, Any]], str] = lambda params: ""

    @property
    def defaults(self) -> dict[str, Any]:
        """Its parameters with their defaults, `REQUIRED` for those without one."""
        parameters = inspect.signature(self.builder).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


TASKS: dict[str, Task] = {
    "niah_single": Task("RULER", niah.single, niah.check),
    "niah_multikey": Task("RULER", niah.multikey, niah.check),
    "niah_multivalue": Task("RULER", niah.multivalue, niah.check),
    "niah_multiquery": Task("RULER", niah.multiquery, niah.check),
    "niah_multiquery_enum": Task("RULER", niah.multiquery_enum, niah.check),
    "vt": Task("RULER", tracing.variables, tracing.check),
    "cwe": Task("RULER", aggregation.common_words, aggregation.check_common),
    "fwe": Task("RULER", aggregation.frequent_words, aggregation.check_frequent),
    "fwe_enum": Task("RULER", aggregation.frequent_words_enum, aggregation.check_frequent),
    "longbench_code_qa": Task("LongBench-v2", code_qa.longbench),
    "code_repository": Task(
        "code repository (not LongBench-v2)", code_qa.code_repository, sources=code_qa.sources
    ),
    "babilong_qa1": Task("BABILong", babilong.qa1, babilong.check),
    "babilong_qa2": Task("BABILong", babilong.qa2, babilong.check),
    "babilong_qa3": Task("BABILong", babilong.qa3, babilong.check),
    "published": Task("published", plain.published),
    "random": Task("random ids", plain.random_ids),
}


def resolve(task: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a task, defaults included.

    Raises:
        ConfigError: the task or a parameter is unknown, a needed one is missing, or a value is none that the
            task can have at any length.
    """
    if task not in TASKS:
        raise ConfigError(f"There is no task {task!r}: choose {', '.join(TASKS)}.")
    defaults = TASKS[task].defaults
    if unknown := [name for name in params if name not in defaults]:
        known = ", ".join(defaults) or "none"
        raise ConfigError(f"Task {task} has no parameter {', '.join(unknown)} (it has: {known}).")
    if lacking := [name for name, default in defaults.items() if default is REQUIRED and name not in params]:
        raise ConfigError(f"Task {task} needs {', '.join(f'{name}=...' for name in lacking)}.")
    hints = get_type_hints(TASKS[task].builder)
    for name, value in params.items():
        if not suits(value, hints[name]):
            raise ConfigError(f"{name}={value!r} must be {called(hints[name], name)}.")
        texts = value if isinstance(value, list | tuple) else [value]
        if name not in _MAY_BE_EMPTY and any(isinstance(text, str) and not text.strip() for text in texts):
            raise ConfigError(f"{name}= is empty: give it a value, or leave it out.")
        _check_storable(name, value)
    resolved = {name: list(v) if isinstance(v, tuple) else v for name, v in {**defaults, **params}.items()}
    TASKS[task].check(resolved)
    return resolved


def _check_storable(name: str, value: Any) -> None:
    """Refuse what a record, which is JSON, cannot hold."""
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise ConfigError(f"{name}={value!r} cannot be stored: {error}.") from error


def build(
    task: str,
    *,
    context_tokens: int,
    tokenizer: Tokenizer,
    seed: int,
    index: int = 0,
    check: bool = True,
    **params: Any,
) -> Record:
    """Build one record of exactly `context_tokens` tokens.

    Args:
        task: a name in `TASKS`.
        context_tokens: prompt length in tokens, chat template and generation prompt included.
        tokenizer: whose tokens count.
        seed, index: which record; the same ones give the same bytes, on any Python and platform.
        check: tokenise the finished prompt once as a whole; without it the sum of its pieces is trusted.
        params: knobs of the task (`TASKS[task].defaults`).

    Raises:
        ConfigError: the task or a parameter is unknown or makes no sense.
        InputError: such a record cannot be built, for example since the needles alone are longer.
    """
    resolved = resolve(task, params)
    at_least("context_tokens", context_tokens, most=LARGEST_CONTEXT)
    at_least("index", index, 0)
    at_least("seed", seed, 0)
    stream = Stream("input", GENERATOR_VERSION, task, seed, index)
    context = Context(tokenizer, context_tokens, stream, seed, index, check)
    built = TASKS[task].builder(context, **resolved)
    text = tokenizer.text(built.draft.content) if built.draft.content else ""
    start = len(tokenizer.before) if text else 0
    return Record(
        task=task,
        family=built.family or TASKS[task].family,
        params=resolved,
        seed=seed,
        index=index,
        context_tokens=context_tokens,
        input_ids=built.draft.ids,
        text=text,
        content_span=(start, start + len(built.draft.content)),
        gold=built.gold,
        needles=built.draft.needles,
        details={**built.details, "opens_thinking": opens_thinking(tokenizer.after)},
        tokenizer_sha256=tokenizer.fingerprint,
        exact=built.exact,
        cost_only=built.cost_only,
    )
