"""Answers worked out from the finished text, by other means than those that built it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator

from generators.record import Record
from generators.templates import DOCUMENT_HEAD
from generators.worlds import MENTION

_SECRET = re.compile(r"One secret (?:number|word|uuid) for ([\w-]+) is ([\w-]+)\.")
_ASSIGNMENT = re.compile(r"VAR ([A-Z]{5}) = (?:VAR )?(\w+)\.")
_LIST_ITEM = re.compile(r" \d+\. ([a-z]+)")


def audit_answer(record: Record) -> Iterator[str]:
    """What is wrong with a record's needles and answers, one sentence each."""
    check = _CHECKS.get(str(record.details.get("unique")))
    if "choices" in record.details:
        check = _document
    if check is not None:
        yield from check(record)


def _each_once(record: Record) -> Iterator[str]:
    for number, needle in enumerate(record.needles):
        found = record.content.count(needle.text)
        if found != 1:
            yield f"needle {number} is in the text {found} times"


def _secrets(record: Record) -> Iterator[str]:
    yield from _each_once(record)
    pairs = _SECRET.findall(record.content)
    keys = Counter(key for key, _ in pairs)
    asked = {needle.key for needle in record.needles}
    several = record.task == "niah_multivalue"
    if repeated := [key for key, count in keys.items() if count > 1 and not (several and key in asked)]:
        yield f"the key {repeated[0]} has {keys[repeated[0]]} values"
    for needle in record.needles:
        if record.content.count(needle.value) != 1:
            yield f"the value {needle.value} is in the text {record.content.count(needle.value)} times"
        if record.content.count(needle.key) < 1:
            yield f"the key {needle.key} is not in the text"
    order = record.details["keys"]
    told = [value for key in order for other, value in pairs if other == key]
    if told != record.gold:
        yield "the text gives other answers than the gold ones"


def _variables(record: Record) -> Iterator[str]:
    yield from _each_once(record)
    pairs = _ASSIGNMENT.findall(record.content)
    if len({name for name, _ in pairs}) != len(pairs):
        yield "a variable is set twice"
    values: dict[str, str] = {}
    for name, source in pairs:
        values[name] = values.get(source, source)
    if [name for name in values if values[name] == record.details["value"]] != record.gold:
        yield "the assignments give other variables than the gold ones"
    # Once in its assignment and once in the question.
    if record.content.count(record.details["value"]) != 2:
        yield "the value asked for is also elsewhere in the text"


def _counts(record: Record) -> Iterator[str]:
    numbered = record.task == "cwe"
    start = record.content.index("List:" if numbered else "Text:") + len("List:")
    body = record.content[start : record.content.rindex("\n\nQuestion:")]
    words = _LIST_ITEM.findall(body) if numbered else [word for word in body.split() if word.isalpha()]
    ranked = Counter(words).most_common()
    top = len(record.gold)
    if {word for word, _ in ranked[:top]} != set(record.gold):
        yield "the text's most frequent words are not the gold ones"
    elif len(ranked) > top and ranked[top - 1][1] == ranked[top][1]:
        yield "the counts leave open which words are the most frequent"


def _facts(record: Record) -> Iterator[str]:
    places = [needle.char_offset for needle in record.needles]
    if places != sorted(places):
        yield "the facts are not in order"
    if record.params["data"] is not None:
        return
    yield from _each_once(record)
    start = record.content.index("Text:")
    filler = record.content[start : record.content.rindex("\n\nQuestion:")]
    for needle in record.needles:
        filler = filler.replace(needle.text, "", 1)
    if mention := MENTION.search(filler):
        yield f"the filler mentions {mention.group()}"


def _document(record: Record) -> Iterator[str]:
    kept = record.details["document_characters"]
    document = record.content[len(DOCUMENT_HEAD) : len(DOCUMENT_HEAD) + kept]
    if hashlib.sha256(document.encode()).hexdigest() != record.details["document_sha256"]:
        yield "the document is not the one that the record names"
    rest = record.content[len(DOCUMENT_HEAD) + kept :]
    if rest.count(record.details["question"]) != 1:
        yield "the question is not in the prompt exactly once"
    for letter, choice in zip("ABCD", record.details["choices"], strict=True):
        if f"\n({letter}) {choice}\n" not in rest:
            yield f"choice {letter} is not whole"
    name = record.details.get("definition")
    if name is not None:
        yield from _definition(record, document, name)


def _definition(record: Record, document: str, name: str) -> Iterator[str]:
    # A longer name that is cut at the document's end, or where its middle was left out, is another one.
    pattern = rf"^(?:async def|def|class) {re.escape(name)}\s*[(:\[]"
    found = list(re.finditer(pattern, document, re.MULTILINE))
    if len(found) != 1:
        yield f"{name} is defined {len(found)} times in the document"
        return
    headers = re.findall(r"^# File: (.+)$", document[: found[0].start()], re.MULTILINE)
    answer = record.details["choices"]["ABCD".index(record.gold[0])]
    if not headers or headers[-1] != answer:
        yield f"{name} is not defined in the file that the gold answer names"


_CHECKS: dict[str, Callable[[Record], Iterator[str]]] = {
    "values": _secrets,
    "keys": _variables,
    "counts": _counts,
    "facts": _facts,
}
