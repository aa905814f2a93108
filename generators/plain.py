"""Inputs that are used as they are: the paper's published files, and random token ids."""

from __future__ import annotations

import codecs
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from generators.assemble import Draft, impossible
from generators.task import Built, Context
from generators.words import LFS_MARKER
from harness.errors import InputError
from harness.regular import read_regular

# SHA-256 of the JSONL files in the paper's repository.
PUBLISHED_SHA256 = {
    "4ff6d96779339a0f61ccccfdf0b8e21580a28d32fd56c9a74555610e699a3d23": "niah_multiquery_enum",
    "9d815b8486e5c0cfc2b7e0b244cbb4256e021f4da2efce0474808619742657b7": "fwe_enum",
    "b9ffd04ceea307eeeb4a1639589a93b657320e874dfade0ca10d1adbd79a4003": "cwe",
}


def published(context: Context, *, path: str, sha256: str | None = None, joiner: str = "\n\n") -> Built:
    """Line `index` of a JSONL file with `context`, `input` and `outputs`, whatever its length.

    Args:
        path: the file. One of the paper's is recognised by its SHA-256 and named in the record.
        sha256: what the file's SHA-256 must be.
        joiner: between context and question.
    """
    file = Path(path).expanduser()
    try:
        data = read_regular(file)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}.") from error
    digest = hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256.lower():
        raise InputError(f"{file} has the SHA-256 {digest}, not {sha256.lower()}: it is another file.")
    if data.startswith(LFS_MARKER.encode()):
        raise InputError(f"{file} is a Git LFS pointer, not the data: fetch it with `git lfs pull`.")
    data = data.removeprefix(codecs.BOM_UTF8)
    lines = [line for line in data.splitlines() if line.strip()]
    if context.index >= len(lines):
        raise InputError(f"{file} holds {len(lines)} records: index {context.index} is not among them.")
    row = _row(lines[context.index], f"Record {context.index} of {file}")
    content = f"{row['context']}{joiner}{row['input']}"
    name = PUBLISHED_SHA256.get(digest)
    details = {
        "question": row["input"],
        "task": row.get("task") or name or "",
        "file_sha256": digest,
        "paper_file": name or "",
    }
    family = f"the paper's published {name}" if name else "user's JSONL"
    draft = Draft(content, context.tokenizer.encode(content))
    return Built(draft, [str(answer) for answer in row["outputs"]], details, exact=False, family=family)


def _row(line: bytes, name: str) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except ValueError as error:
        raise InputError(f"{name} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise InputError(f"{name} is not a JSON object.")
    if isinstance(row.get("outputs"), str):
        row["outputs"] = [row["outputs"]]
    outputs = row.get("outputs")
    if isinstance(outputs, list) and any(
        isinstance(v, bool) or not isinstance(v, str | int | float) for v in outputs
    ):
        raise InputError(f"{name} has outputs that are neither text nor a number.")
    texts = all(isinstance(row.get(key), str) for key in ("context", "input"))
    if not texts or not isinstance(row.get("outputs"), list) or not row["outputs"]:
        raise InputError(f"{name} needs the fields context, input (texts) and outputs (a list of answers).")
    return row


def random_ids(context: Context) -> Built:
    """Ordinary token ids drawn uniformly, inside the chat frame: for cost only, no answer is right."""
    frame = context.tokenizer.encode("")
    before = context.tokenizer.first_ids("")
    room = context.context_tokens - len(frame)
    if room < 1:
        raise impossible(context.context_tokens, len(frame) + 1, "the chat template and one token")
    ids = context.tokenizer.plain_ids
    drawn = ids[context.stream.child("ids").below(len(ids), room)]
    whole = np.concatenate([before, drawn, frame[len(before) :]])
    return Built(Draft("", whole), [], {"note": "random token ids: cost only"}, cost_only=True)
