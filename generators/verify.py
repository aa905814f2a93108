"""Auditing a corpus: everything its manifest says is computed again from the text.

A record is tokenised as a whole, its needles are looked for, its answer is worked out from the text, and the
record is built again and compared byte for byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from generators.assemble import locate
from generators.audits import audit_answer
from generators.corpus import MANIFEST_SCHEMA, READ, tokenizer_folder
from generators.origins import read_digests
from generators.record import Record
from generators.tasks import TASKS, build
from generators.tokenizer import Tokenizer, same_ids
from harness.errors import HarnessError, InputError
from harness.regular import read_regular

_FIELDS = {
    "task": str,
    "context_tokens": int,
    "seed": int,
    "params": dict,
    "tokenizer_sha256": str,
    "generator_version": str,
    "template_options": dict,
    "count": int,
    "jsonl_sha256": str,
    "records": list,
}


def verify(
    path: Path,
    *,
    tokenizer_path: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Audit the corpus of a JSONL file or its manifest.

    Args:
        tokenizer_path: where the tokenizer is; by default the copy that the corpus keeps.

    Returns:
        What is wrong, one sentence each; empty where all is right.

    Raises:
        InputError: there is no such corpus, or its tokenizer is not to be had.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: give a corpus's JSONL file or its manifest.")
    stem = path.name.removesuffix(".jsonl").removesuffix(".manifest.json")
    records, described = path.with_name(f"{stem}.jsonl"), path.with_name(f"{stem}.manifest.json")
    for file in (path, records, described):
        if not file.exists():
            beside = "" if file == path else f" beside {path.name}"
            raise InputError(f"There is no file {file}{beside}: a corpus is a JSONL file and its manifest.")
    manifest = _read_manifest(described)
    tokenizer = _load_tokenizer(path.parent, manifest, tokenizer_path)
    problems = [f"{name} is another text now than the corpus was made from" for name in _changed(manifest)]
    digest = hashlib.sha256()
    count = 0
    with records.open("rb") as lines:
        for number, line in enumerate(lines):
            digest.update(line)
            count += 1
            summary = manifest["records"][number] if number < len(manifest["records"]) else None
            problems += [f"record {number}: {what}" for what in _problems(line, summary, manifest, tokenizer)]
            progress(number + 1, manifest["count"])
    if not count == manifest["count"] == len(manifest["records"]):
        problems.append(f"the file holds {count} records, the manifest {manifest['count']}")
    if digest.hexdigest() != manifest["jsonl_sha256"]:
        problems.append("the file's SHA-256 is not the manifest's")
    return problems


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = orjson.loads(read_regular(path))
    except (OSError, ValueError) as error:
        raise InputError(f"The manifest {path} cannot be read: {error}") from error
    known = isinstance(manifest, dict) and manifest.get("schema") == MANIFEST_SCHEMA
    known = known and all(isinstance(manifest.get(name), kind) for name, kind in _FIELDS.items())
    if not known or not all(isinstance(record, dict) for record in manifest["records"]):
        raise InputError(f"{path} is no manifest that this version can read.")
    return manifest


def _changed(manifest: dict[str, Any]) -> list[str]:
    """What the corpus was made from and is another text here; what is not here is the records' to say."""
    before = manifest.get(READ)
    try:
        now = read_digests(manifest["params"])
    except (HarnessError, TypeError, ValueError):
        return []
    return [name for name in now if isinstance(before, dict) and before.get(name, now[name]) != now[name]]


def _load_tokenizer(folder: Path, manifest: dict[str, Any], given: str | None) -> Tokenizer:
    place = given or str(tokenizer_folder(folder, manifest["tokenizer_sha256"]))
    tokenizer = Tokenizer.load(place, template_options=manifest["template_options"])
    if tokenizer.fingerprint != manifest["tokenizer_sha256"]:
        raise InputError(
            f"The tokenizer at {place} has the fingerprint {tokenizer.fingerprint[:16]}, but the corpus was"
            f" built with {manifest['tokenizer_sha256'][:16]}: give the right one with tokenizer=PATH."
        )
    return tokenizer


def _problems(
    line: bytes, summary: dict[str, Any] | None, manifest: dict[str, Any], tokenizer: Tokenizer
) -> Iterator[str]:
    try:
        record = Record.from_json(line)
    except InputError as error:
        yield str(error)
        return
    if orjson.loads(orjson.dumps(record.summary())) != summary:
        stored = orjson.loads(line)
        wrong = [
            n for n, v in orjson.loads(orjson.dumps(record.summary())).items() if (summary or {}).get(n) != v
        ]
        wrong += [n for n, v in record.summary().items() if n.endswith("sha256") and stored.get(n) != v]
        yield f"it differs from the manifest in {', '.join(dict.fromkeys(wrong)) or 'its place'}"
    for name in ("task", "context_tokens", "seed", "params", "tokenizer_sha256", "generator_version"):
        if getattr(record, name) != manifest[name]:
            yield f"its {name} is not the corpus's"
    try:
        if record.sources != manifest.get("sources", record.sources):
            yield f"it is of the {record.sources}, the corpus of the {manifest['sources']}"
        yield from audit(record, tokenizer)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        yield f"its details are damaged ({type(error).__name__}: {error})"
    yield from _rebuilt(record, line, tokenizer)


def audit(record: Record, tokenizer: Tokenizer) -> Iterator[str]:
    """What is wrong with a record by itself, one sentence each."""
    if record.exact and record.token_count != record.context_tokens:
        yield f"it has {record.token_count:,} tokens, not {record.context_tokens:,}"
    if record.cost_only:
        return
    if record.text != tokenizer.text(record.content):
        yield "its text is not the chat template around the message"
        return
    ids, starts, ends = tokenizer.encode_with_offsets(record.content)
    if not same_ids(ids, record.input_ids):
        yield f"its ids are not those of its text ({len(ids):,} against {record.token_count:,})"
    for number, needle in enumerate(record.needles):
        place = slice(needle.char_offset, needle.char_offset + len(needle.text))
        if record.text[place] != needle.text:
            yield f"needle {number} is not at character {needle.char_offset:,}"
        elif locate(starts, ends, needle.char_offset, len(needle.text)) != (
            needle.token_offset,
            needle.token_count,
        ):
            yield f"needle {number} is not at token {needle.token_offset:,}"
    yield from audit_answer(record)


def _rebuilt(record: Record, line: bytes, tokenizer: Tokenizer) -> Iterator[str]:
    try:
        here = TASKS[record.task].sources(record.params)
        if record.sources != here:
            yield f"it cannot be built again here: it is of the {record.sources}, this is the {here}"
            return
        again = build(
            record.task,
            context_tokens=record.context_tokens,
            tokenizer=tokenizer,
            seed=record.seed,
            index=record.index,
            check=False,
            **record.params,
        )
    except (HarnessError, LookupError, TypeError, ValueError, AttributeError) as error:
        yield f"it cannot be built again: {error}"
        return
    if again.to_json() != line.rstrip(b"\n"):
        yield "built again it comes out differently (other sources, or a changed generator)"
