"""Scores of answers: the upstream rule, for comparison, and a strict one.

Both divide by the number of gold answers, whatever the output holds.

RULER: the share of gold answers in the output. Upstream takes any substring, so that 12345 is found in
3123456; strict takes whole words and whole numbers of the output less its thinking.
LongBench-v2: the chosen letter. Upstream reads only "The correct answer is (B)"; strict also a plain letter,
and the last choice where several are stated.
BABILong: upstream looks for each task's labels as substrings of the first sentence (`one` in `none`) and
wants the target alone; strict looks for whole words in the whole answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from generators.record import Record, as_mapping
from harness.errors import ConfigError

_THINK_TAG = r"(?:think|thinking|thought|reasoning)"
_THOUGHT = re.compile(rf"<({_THINK_TAG})>.*?</\1>|\[THINK\].*?\[/THINK\]", re.DOTALL | re.IGNORECASE)
_OPENED = re.compile(rf"(?:<{_THINK_TAG}>|\[THINK\]).*\Z", re.DOTALL | re.IGNORECASE)
_CLOSED = re.compile(rf"\A.*(?:</{_THINK_TAG}>|\[/THINK\])", re.DOTALL | re.IGNORECASE)

_ROOMS = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
_YES_NO = ("no", "yes")
BABILONG_LABELS: dict[str, tuple[str, ...]] = {
    **{f"qa{n}": _ROOMS for n in (1, 2, 3, 4, 11, 12, 13)},
    **{f"qa{n}": _YES_NO for n in (6, 9, 17, 18)},
    "qa5": ("Bill", "Fred", "Jeff", "Mary", "apple", "football", "milk"),
    "qa7": ("none", "one", "three", "two"),
    "qa8": ("apple", "football", "milk", "nothing"),
    "qa10": ("maybe", "no", "yes"),
    "qa14": ("bedroom", "cinema", "kitchen", "office", "park", "school"),
    "qa15": ("cat", "mouse", "sheep", "wolf"),
    "qa16": ("gray", "green", "white", "yellow"),
    "qa19": tuple(f"{a},{b}" for a in "ensw" for b in "ensw" if {a, b} not in ({"e", "w"}, {"n", "s"})),
    "qa20": ("bedroom", "bored", "garden", "hungry", "kitchen", "thirsty", "tired"),
}
_UPSTREAM_LETTER = (
    re.compile(r"The correct answer is \(([A-D])\)"),
    re.compile(r"The correct answer is ([A-D])"),
)
_STATED = re.compile(r"\b(?i:answer|choice|option)\b(?i:\s+is)?\s*:?\s*\(?([A-D])\)?(?![\w'’])")
_LEADING = re.compile(r"\s*(?:\(([A-D])\)|([A-D])(?:[.):]|\s*$))")


def score(task: str, record: Record | Mapping[str, Any], output_text: str) -> dict[str, float]:
    """Scores of one output, both between 0 and 1; both NaN where no answer is right (random ids).

    Args:
        task: task name of the record.
        record: the record, or its summary as stored in a manifest.
        output_text: what the model wrote.

    Returns:
        {"strict": ..., "upstream": ...}.

    Raises:
        ConfigError: the record is of another task.
    """
    facts = as_mapping(record)
    if facts["task"] != task:
        raise ConfigError(f"The record is of task {facts['task']}, not {task}.")
    gold, details = list(facts["gold"]), facts["details"]
    if not gold:
        return {"strict": math.nan, "upstream": math.nan}
    answer = without_thinking(output_text, opened=bool(details.get("opens_thinking")))
    if "choices" in details:
        strict, upstream = longbench_strict(gold[0], answer), longbench_upstream(gold[0], output_text)
    elif "world" in details:
        kind, question = details["world"], details["question"]
        strict = babilong_strict(kind, gold[0], answer, question)
        upstream = babilong_upstream(kind, gold[0], output_text, question)
    else:
        return {"strict": ruler_strict(gold, answer), "upstream": ruler_upstream(gold, output_text)}
    return {"strict": float(strict), "upstream": float(upstream)}


def opens_thinking(generation_prompt: str) -> bool:
    """Whether the prompt ends inside a thinking block, so that the model goes on thinking."""
    return _OPENED.search(_THOUGHT.sub("", generation_prompt)) is not None


def without_thinking(output: str, *, opened: bool = False) -> str:
    """An output less its thinking.

    Args:
        opened: the prompt itself ended in an opening tag, so that all before the closing one is thinking.
    """
    text = _CLOSED.sub("", _THOUGHT.sub("", output))
    text = _OPENED.sub("", text)
    closed = _CLOSED.match(output) is not None
    return "" if opened and not closed else text.strip()


def ruler_upstream(gold: Sequence[str], output: str) -> float:
    """RULER's `string_match_all`: the share of gold answers that are substrings, in lower case."""
    text = output.lower()
    return sum(answer.lower() in text for answer in gold) / len(gold)


def ruler_strict(gold: Sequence[str], answer: str) -> float:
    """The share of gold answers that stand in the answer as whole words or numbers, in lower case."""
    return sum(_stands_in(each, answer) for each in gold) / len(gold)


def _stands_in(phrase: str, text: str) -> bool:
    # Joined by a hyphen, or by a point or comma between digits, it would be another word or number.
    before, after = r"(?<!\w)(?<!\w-)(?<!\d[.,])", r"(?!\w)(?!-\w)(?![.,]\d)"
    return re.search(before + re.escape(phrase.lower()) + after, text.lower()) is not None


def longbench_upstream(gold: str, output: str) -> bool:
    """LongBench-v2's rule: the letter in "The correct answer is (B)", with or without brackets."""
    text = output.replace("*", "")
    match = _UPSTREAM_LETTER[0].search(text) or _UPSTREAM_LETTER[1].search(text)
    return match is not None and match.group(1) == gold


def longbench_strict(gold: str, answer: str) -> bool:
    """The last choice that is stated, or the letter that the answer begins with."""
    text = re.sub(r"[*_`$]", "", answer)
    if stated := _STATED.findall(text):
        return bool(stated[-1] == gold)
    match = _LEADING.match(text)
    return match is not None and (match.group(1) or match.group(2)) == gold


def _labels(kind: str) -> tuple[str, ...]:
    if kind not in BABILONG_LABELS:
        raise ConfigError(f"There is no BABILong task {kind!r}: choose qa1 to qa20.")
    return tuple(label.lower() for label in BABILONG_LABELS[kind])


def babilong_upstream(kind: str, target: str, output: str, question: str) -> bool:
    """BABILong's rule: in the first sentence the target, and no other label that the question lacks."""
    text = output.lower().split(".")[0]
    for end in ("<context>", "<example>"):
        text = text.split(end)[0]
    target = target.lower()
    found = {label for label in _labels(kind) if label in text and label not in question.lower()}
    if "," in target and len(target) > 3:
        return found == set(target.split(","))
    return found == {target}


def babilong_strict(kind: str, target: str, answer: str, question: str) -> bool:
    """The target's labels as whole words of the answer, and no other that the question does not name."""
    text = re.sub(r"\s*,\s*", ",", answer.lower())
    asked = question.lower()
    labels = _labels(kind)
    target = re.sub(r"\s*,\s*", ",", target.lower().strip())
    wanted = {target} if target in labels else set(target.split(","))
    found = {label for label in labels if _word_in(label, text) and not _word_in(label, asked)}
    denied = any(
        re.search(rf"(?:\bnot|n't|\bnever)\b[^.,;]{{0,16}}\b{re.escape(each)}\b", text) for each in wanted
    )
    return found == wanted and not denied


def _word_in(label: str, text: str) -> bool:
    # A path such as `n,e` must not be found inside `n,e,s`; other labels may stand in a list.
    edge = r"[\w,]" if "," in label else r"\w"
    return re.search(rf"(?<!{edge}){re.escape(label)}(?!{edge})", text) is not None
