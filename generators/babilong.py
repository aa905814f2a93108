"""BABILong: the facts of a small world, in order, scattered through unrelated text.

Differs from BABILong in the words of the prompt, which has no worked examples, and in its background: the
package's own prose or a text of the user's, less the sentences that mention the world's people, places or
things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from generators.assemble import Draft, Filler, haystack
from generators.documents import UserText, expand, read_text, split_sentences
from generators.fillers import Prose
from generators.rows import read_rows
from generators.task import Built, Context, at_least, one_of
from generators.templates import WORLD_ASK, WORLD_HEAD, fill
from generators.worlds import MENTION, Story, make_story
from harness.errors import ConfigError, InputError

_FACTS = {"qa1": 8, "qa2": 12, "qa3": 16}


def check(params: Mapping[str, Any]) -> None:
    """Refuse parameters that make no story.

    Raises:
        ConfigError: names one and what it must be.
    """
    one_of("placement", params["placement"], ("spread", "whole"))
    if params["facts"] is None:
        return
    if params["data"] is not None:
        raise ConfigError("The facts of released data are given: leave facts out.")
    at_least("facts", params["facts"], 2)


def qa1(
    context: Context,
    *,
    facts: int | None = None,
    files: Sequence[str] = (),
    data: str | None = None,
    data_config: str = "0k",
    placement: str = "spread",
) -> Built:
    """Where is a person? One supporting fact."""
    return _build(context, "qa1", facts, files, data, data_config, placement)


def qa2(
    context: Context,
    *,
    facts: int | None = None,
    files: Sequence[str] = (),
    data: str | None = None,
    data_config: str = "0k",
    placement: str = "spread",
) -> Built:
    """Where is a thing? Two supporting facts."""
    return _build(context, "qa2", facts, files, data, data_config, placement)


def qa3(
    context: Context,
    *,
    facts: int | None = None,
    files: Sequence[str] = (),
    data: str | None = None,
    data_config: str = "0k",
    placement: str = "spread",
) -> Built:
    """Where was a thing before? Three supporting facts."""
    return _build(context, "qa3", facts, files, data, data_config, placement)


def _build(
    context: Context,
    kind: str,
    facts: int | None,
    files: Sequence[str],
    data: str | None,
    data_config: str,
    placement: str,
) -> Built:
    """
    Args:
        facts: sentences of a generated story.
        files: background text, or folders of .txt files; the package's own prose where none is given.
        data: the released data set (rows with `input`, `question`, `target`) instead of generated stories.
        data_config: of the released set on the Hub; its split is `kind`.
        placement: `spread` scatters the sentences of a released input, `whole` keeps it in one piece.
    """
    family = "BABILong" if data is not None else "BABILong (generated worlds)"
    story = (
        _released(context, data, data_config, kind, placement)
        if data is not None
        else make_story(
            context.stream.child("story"),
            kind,
            _FACTS[kind] if facts is None else facts,
        )
    )
    background = "\n\n".join(read_text(path) for path in expand(files)) if files else ""
    needles = [(f" {fact}", subject, "") for fact, subject in zip(story.facts, story.subjects, strict=True)]
    ask = fill(WORLD_ASK, {"question": story.question})

    def plan(aim: int, attempt: int) -> Draft:
        stream = context.stream.child("plan")
        filler: Filler = Prose(context.tokenizer, stream)
        if files:
            filler = UserText(
                context.tokenizer, background, stream, ", ".join(map(str, files)), leave_out=MENTION
            )
        return haystack(
            context.tokenizer,
            head=WORLD_HEAD,
            needles=needles,
            ask=ask,
            filler=filler,
            target_tokens=aim,
            stream=stream,
            attempt=attempt,
        )

    details = {"question": story.question, "world": kind, "unique": "facts"}
    return Built(context.exact(plan), [story.answer], details, family=family)


def _released(context: Context, data: str, config: str, kind: str, placement: str) -> Story:
    rows = read_rows(data, ("input", "question", "target"), config=config, split=kind)
    if context.index >= len(rows):
        raise InputError(f"{data} holds {len(rows)} rows: index {context.index} is not among them.")
    row = rows[context.index]
    text = row["input"].strip()
    facts = [piece.strip() for piece in split_sentences(text)] if placement == "spread" else [text]
    question, target = row["question"].strip(), row["target"].strip()
    if not (text and question and target):
        raise InputError(f"Row {context.index} of {data} has an empty input, question or target.")
    return Story(facts, [""] * len(facts), question, target)
