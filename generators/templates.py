"""Task prompts in our own words, after the task definitions of RULER, LongBench-v2 and BABILong.

A prompt is head + context + tail. Heads end in a label (`Text:`) so that the context can go on with a space,
which is where tokenisers split words; tails begin with an empty line. Each text is filled in one pass, so
nothing inside a value (a document with `{braces}`, `$Q$`, `%s` or another slot's name) is ever expanded.
docs/inputs.md lists where a prompt differs from upstream's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.errors import InputError

_SLOT = re.compile(r"<<([a-z_]+)>>")

NIAH_HEAD = (
    "Secret <<kinds>> are hidden in the text below. Remember them: a question about them follows the text."
    "\n\nText:"
)
NIAH_NEEDLE = " One secret <<kind>> for <<key>> is <<value>>."
NIAH_ASK_ONE = (
    "\n\nQuestion: Which secret <<kind>> for <<keys>> does the text give? Reply with the <<kind>> only."
)
NIAH_ASK_ALL_VALUES = (
    "\n\nQuestion: Which secret <<kinds>> for <<keys>> does the text give? List all <<count>> of them."
)
NIAH_ASK_KEYS = (
    "\n\nQuestion: Which secret <<kinds>> does the text give for these keys: <<keys>>?"
    " Write one line for each key, as `key: <<kind>>`."
)
NIAH_ASK_ENUM = (
    "\n\nQuestion: Which secret <<kinds>> does the text give for these <<count>> keys: <<keys>>?"
    " Answer with a numbered list of all <<count>> keys in this order, one line each, as `key: <<kind>>`."
)

VT_HEAD = (
    "Variables are set in the text below, to a number or to the value of an earlier variable. Remember them."
    "\n\nText:"
)
VT_SET = " VAR <<name>> = <<value>>."
VT_COPY = " VAR <<name>> = VAR <<source>>."
VT_ASK = (
    "\n\nQuestion: Which variables hold the value <<value>>, directly or through other variables?"
    " List all <<count>> names."
)

CWE_HEAD = (
    "Below is a numbered list of words. A few words occur more often than all others. Remember which ones."
    "\n\nList:"
)
CWE_ASK = (
    "\n\nQuestion: Which <<count>> words occur most often in the list? Answer with these <<count>> words,"
    " numbered, one line each."
)
FWE_HEAD = (
    "Below is a text of invented code words. Keep track of how often each occurs; runs of dots are noise."
    "\n\nText:"
)
FWE_ASK = (
    "\n\nQuestion: Ignoring the dots, which <<count>> code words occur most often in the text? Answer with"
    " these <<count>> words, numbered, one line each."
)

DOCUMENT_HEAD = "Read the document and answer the question that follows it.\n\n<document>\n"
DOCUMENT_ASK = (
    "\n</document>\n\nQuestion: <<question>>\n(A) <<choice_a>>\n(B) <<choice_b>>\n(C) <<choice_c>>\n"
    '(D) <<choice_d>>\n\nAnswer in this form: "The correct answer is (your letter)".'
)

WORLD_HEAD = (
    "Facts about a few people, places and things are scattered through an unrelated text. Read it and answer"
    " the question from the facts alone; where they change, the latest counts.\n\nText:"
)
WORLD_ASK = "\n\nQuestion: <<question>> Answer with one word."


def fill(template: str, values: Mapping[str, object]) -> str:
    """Put values into the `<<slots>>` of a template, all in one pass.

    Raises:
        InputError: a slot has no value.
    """
    missing = [name for name in _SLOT.findall(template) if name not in values]
    if missing:
        raise InputError(f"The template needs a value for {', '.join(missing)}.")
    return _SLOT.sub(lambda match: str(values[match.group(1)]), template)


def spoken_list(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def numbered(lines: Sequence[str]) -> str:
    """`1. a` and so on, one line each."""
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


def ideal_answer(task: str, gold: Sequence[str], keys: Sequence[str] = ()) -> str:
    """The reply that a prompt asks for, such as one a model could be trained on.

    Args:
        task: task name.
        gold: gold answers of the record, in order.
        keys: queried keys, for tasks that pair a key with each answer.
    """
    if task == "niah_multiquery_enum":
        return numbered([f"{key}: {value}" for key, value in zip(keys, gold, strict=True)])
    if task == "niah_multiquery":
        return "\n".join(f"{key}: {value}" for key, value in zip(keys, gold, strict=True))
    if task in {"cwe", "fwe", "fwe_enum"}:
        return numbered(gold)
    if task in {"longbench_code_qa", "code_repository"}:
        return f"The correct answer is ({gold[0]})."
    return ", ".join(gold)
