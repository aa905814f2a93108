"""Multiple-choice questions on long documents of code: LongBench-v2's code-repository domain.

The document is longer than the context and loses its tail, nothing else; the question and its choices are
whole. `code_repository` makes records of the same kind from source files on disk, for machines without the
data set; its question is computed, and the record says that it is not LongBench.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from generators.assemble import Draft
from generators.documents import TooShortError, read_text, truncated
from generators.rng import Stream
from generators.rows import Row, read_rows
from generators.task import Built, Context
from generators.templates import DOCUMENT_ASK, DOCUMENT_HEAD, fill
from generators.tokenizer import Tokenizer
from harness.errors import InputError

LETTERS = "ABCD"
_CHOICES = tuple(f"choice_{letter}" for letter in LETTERS)
_DEFINITION = re.compile(r"^(?:async def|def|class) (\w+)", re.MULTILINE)
_LEFT_OUT = {"site-packages", "__pycache__", "test", "tests", "idle_test", "lib-dynload"}
_SAMPLE_CHARACTERS = 1 << 16
# Code has about 3 characters a token; enough files are read for a few more.
_CHARACTERS_PER_TOKEN = 5
_LEAST_FILES = 48


def longbench(
    context: Context,
    *,
    data: str,
    domain: str = "Code Repository Understanding",
    data_split: str = "train",
) -> Built:
    """A question of LongBench-v2 on a document that is naturally longer than the context.

    Args:
        data: JSON, JSONL or Parquet file of the released data set, or its Hub id.
        domain: which questions to take.
    """
    rows = read_rows(data, ("_id", "domain", "question", "context", "answer", *_CHOICES), split=data_split)
    rows = sorted((row for row in rows if row["domain"] == domain), key=lambda row: str(row["_id"]))
    if not rows:
        raise InputError(f"{data} has no rows of the domain {domain!r}.")
    passed = 0
    longest = 0
    for row in Stream("rows", context.seed).shuffled(rows):
        estimate = _estimated_tokens(context.tokenizer, row["context"])
        longest = max(longest, estimate)
        # Far too short ones are not even tried.
        if estimate * 5 < context.context_tokens * 4:
            continue
        try:
            built = _ask_row(context, row)
        except TooShortError:
            continue
        if passed == context.index:
            return built
        passed += 1
    raise InputError(
        f"{passed} documents of {domain!r} in {data} are longer than {context.context_tokens:,} tokens, so"
        f" there is no record {context.index}; the longest has about {longest:,} tokens. Choose a shorter"
        " context."
    )


def _estimated_tokens(tokenizer: Tokenizer, text: str) -> int:
    sample = text[:_SAMPLE_CHARACTERS]
    tokenizer.check_text(sample)
    return len(tokenizer.piece_ids([sample], after="\n")[0]) * len(text) // max(len(sample), 1)


def _ask_row(context: Context, row: Row) -> Built:
    answer = row["answer"].strip().upper()
    if answer not in LETTERS or len(answer) != 1:
        raise InputError(
            f"Row {row['_id']} has the answer {row['answer']!r}, which is none of A, B, C and D."
        )
    if not row["question"].strip():
        raise InputError(f"Row {row['_id']} has an empty question.")
    choices = [row[name] for name in _CHOICES]
    return _ask(context, row["context"], row["question"], choices, answer, {"source_id": row["_id"]})


def _ask(
    context: Context, document: str, question: str, choices: list[str], answer: str, details: dict[str, str]
) -> Built:
    context.tokenizer.check_text(document)
    values = {f"choice_{letter.lower()}": choice for letter, choice in zip(LETTERS, choices, strict=True)}
    ask = fill(DOCUMENT_ASK, {"question": question, **values})
    kept = 0

    def plan(aim: int, attempt: int) -> Draft:
        nonlocal kept
        draft, kept = truncated(
            context.tokenizer, head=DOCUMENT_HEAD, document=document, ask=ask, target_tokens=aim
        )
        return draft

    draft = context.exact(plan)
    more = {"question": question, "choices": choices, "document_characters": kept}
    whole = {"document_sha256": hashlib.sha256(document[:kept].encode()).hexdigest()}
    return Built(draft, [answer], {**more, **whole, **details})


@dataclass(frozen=True)
class _Source:
    path: str
    text: str

    @cached_property
    def definitions(self) -> list[tuple[str, int]]:
        """Names defined at the top level and where their lines end."""
        return [(match.group(1), match.end()) for match in _DEFINITION.finditer(self.text)]


def code_repository(context: Context, *, root: str | None = None) -> Built:
    """In which file is a name defined? Asked of a folder's Python files, put together as one document.

    Args:
        root: folder of Python sources; the standard library of the running interpreter where left out.
    """
    folder = Path(root or sysconfig.get_path("stdlib")).expanduser()
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}.")
    paths = source_paths(folder)
    if len(paths) < len(LETTERS):
        raise InputError(f"{folder} holds {len(paths)} Python files; {len(LETTERS)} choices need as many.")
    stream = context.stream.child("repository")
    order = stream.shuffled(paths)
    sources: list[_Source] = []
    characters = 0
    for name in order:
        if characters > context.context_tokens * _CHARACTERS_PER_TOKEN and len(sources) >= _LEAST_FILES:
            break
        source = _read_source(folder, name)
        if source is not None:
            sources.append(source)
            characters += len(source.text)
    return _ask_sources(context, sources, stream, root)


def sources(params: Mapping[str, Any]) -> str:
    """As `Record.sources` of a record that is built here."""
    return f"standard library of Python {platform.python_version()}" if params["root"] is None else ""


def source_paths(folder: Path) -> list[str]:
    """Paths of Python sources below a folder, in the order of their names."""
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        inside = Path(place).relative_to(folder)
        # A folder may be called so, too; it is passed over when read.
        found += [(inside / name).as_posix() for name in [*names, *folders] if name.endswith(".py")]
    # Names go into the document, where one that is no text, or several lines, would be in the way.
    return sorted(name for name in found if name.isprintable())


def _read_source(folder: Path, name: str) -> _Source | None:
    """A source file, or None for one that is no plain UTF-8 or is empty."""
    try:
        text = read_text(folder / name)
    except InputError:
        return None
    return _Source(name, text) if text.strip() else None


def _ask_sources(context: Context, sources: list[_Source], stream: Stream, root: str | None) -> Built:
    sample = ""
    for source in sources:
        if len(sample) < _SAMPLE_CHARACTERS:
            sample += _listing(source)
    sample = sample[:_SAMPLE_CHARACTERS]
    per_token = len(sample) / max(_estimated_tokens(context.tokenizer, sample), 1)
    # Characters that surely stay: the question and an uncertain ratio are taken off.
    surely = int(max(context.context_tokens - 320, context.context_tokens // 3) * per_token * 0.7)
    names = [name for source in sources for name, _ in source.definitions]
    once = {name for name, count in Counter(names).items() if count == 1 and len(name) > 3 and name[0] != "_"}
    sources, target, name, place = _choose(sources, once, surely, stream)
    others = stream.sample([source.path for source in sources if source is not target], len(LETTERS) - 1)
    letter = stream.choice(LETTERS)
    choices = [*others]
    choices.insert(LETTERS.index(letter), target.path)
    document = "".join(_listing(source) for source in sources)
    built = _ask(
        context,
        document,
        f"In which file of the document is `{name}` defined at the top level?",
        choices,
        letter,
        {
            "source": "Python standard library" if root is None else root,
            "python": platform.python_version() if root is None else "",
            "definition": name,
        },
    )
    if built.details["document_characters"] < place:
        raise InputError(
            f"{context.context_tokens:,} tokens hold {built.details['document_characters']:,} characters of"
            f" code, but the definition asked for ends at {place:,}: ask for a longer context."
        )
    return replace(built, family="code repository (not LongBench-v2)")


def _choose(
    sources: list[_Source], once: set[str], surely: int, stream: Stream
) -> tuple[list[_Source], _Source, str, int]:
    """Sources in the order of the document, the file and name asked for, and where its definition ends."""
    wanted = stream.integer(0, max(surely, 0))
    best: tuple[int, int, str] | None = None
    start = 0
    for number, source in enumerate(sources):
        if start > surely:
            break
        header = len(_header(source))
        for name, end in source.definitions:
            place = start + header + end
            if (
                name in once
                and place <= surely
                and (best is None or abs(place - wanted) < abs(best[0] - wanted))
            ):
                best = (place, number, name)
        start += len(_listing(source))
    if best is not None:
        place, number, name = best
        if _is_defined(sources[number], name):
            return sources, sources[number], name, place
    # A short context holds the beginning of one file: take one that defines a name early on.
    early = [
        (len(_header(source)) + end, number, name)
        for number, source in enumerate(sources)
        for name, end in source.definitions[:1]
        if name in once and _is_defined(source, name)
    ]
    if not early:
        raise InputError("No file defines a name at its top level that no other file defines.")
    place, number, name = min(early)
    return [sources[number], *sources[:number], *sources[number + 1 :]], sources[number], name, place


def _is_defined(source: _Source, name: str) -> bool:
    """Whether Python itself finds the definition at the file's top level, and not in a string."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the sources' own doubtful syntax
            nodes = ast.parse(source.text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) and node.name == name for node in nodes)


def _header(source: _Source) -> str:
    return f"# File: {source.path}\n"


def _listing(source: _Source) -> str:
    return f"{_header(source)}{source.text.rstrip()}\n\n"
