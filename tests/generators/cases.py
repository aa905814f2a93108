"""Small cases of every task, pinned in golden/manifest.json.

`python -m tests.generators.cases` prints what this interpreter builds; `--write` pins it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import generators
from generators.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data"
GOLDEN = Path(__file__).parent / "golden" / "manifest.json"
TOKENIZER = "small_bpe"

# (task, parameters); paths are relative to DATA.
TASKS: list[tuple[str, dict[str, Any]]] = [
    ("niah_single", {}),
    ("niah_single", {"depth_percent": 25.0, "values_kind": "uuids", "keys_kind": "numbers"}),
    ("niah_single", {"haystack_kind": "prose", "files": ["book.txt"], "values_kind": "words"}),
    ("niah_multikey", {"keys": 3}),
    ("niah_multikey", {"keys": 1, "haystack_kind": "needles"}),
    ("niah_multivalue", {"values": 3}),
    ("niah_multiquery", {"keys": 2}),
    ("niah_multiquery_enum", {"keys": 5}),
    ("vt", {}),
    ("vt", {"chains": 2, "hops": 2}),
    ("cwe", {"words": 5}),
    ("cwe", {"words": 4, "common_repeats": 5, "uncommon_repeats": 2}),
    ("fwe", {}),
    ("fwe", {"alpha": 1.7, "vocabulary": 20}),
    ("fwe_enum", {"words": 12}),
    ("longbench_code_qa", {"data": "longbench.json"}),
    ("code_repository", {"root": "repository"}),
    ("babilong_qa1", {}),
    ("babilong_qa2", {"facts": 9}),
    ("babilong_qa3", {"facts": 10}),
    ("babilong_qa2", {"files": ["book.txt"], "facts": 8}),
    ("babilong_qa2", {"data": "babilong.jsonl"}),
    ("babilong_qa2", {"data": "babilong.jsonl", "placement": "whole"}),
    ("published", {"path": "published.jsonl"}),
    ("random", {}),
]
LENGTHS = (701, 1800)


def in_data(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters with their paths made absolute."""
    placed = dict(params)
    for name in ("data", "root", "path"):
        if placed.get(name):
            placed[name] = str(DATA / placed[name])
    if placed.get("files"):
        placed["files"] = [str(DATA / name) for name in placed["files"]]
    return placed


def build_all() -> list[dict[str, Any]]:
    """What a manifest says about every case; run in DATA, so that paths in parameters are relative."""
    tokenizer = Tokenizer.load(TOKENIZER)
    out = []
    for task, params in TASKS:
        for length in LENGTHS:
            record = generators.build(
                task, context_tokens=length, tokenizer=tokenizer, seed=7, index=1, **params
            )
            summary = record.summary()
            # The question and the document's own facts are covered by the hashes.
            out.append({name: summary[name] for name in sorted(summary) if name != "details"})
    return out


def main(arguments: list[str]) -> None:
    import os

    os.chdir(DATA)
    text = json.dumps(build_all(), indent=1, sort_keys=True) + "\n"
    if "--write" in arguments:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text, encoding="utf-8")
    else:
        sys.stdout.buffer.write(text.encode())


if __name__ == "__main__":
    main(sys.argv[1:])
