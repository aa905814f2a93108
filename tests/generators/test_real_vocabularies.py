"""Exact at every length with real vocabularies: byte-level BPE, SentencePiece, and the shipped model's."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
import tokenizers

import generators
from generators.audits import audit_answer
from generators.verify import audit
from tests.generators.conftest import vocabulary_folder
from tests.generators.test_documents import row

TASKS = {
    "niah_single": {},
    "niah_multikey": {"haystack_kind": "needles"},
    "niah_multivalue": {},
    "niah_multiquery": {},
    "niah_multiquery_enum": {},
    "vt": {},
    "cwe": {"words": 30},
    "fwe": {},
    "fwe_enum": {},
    "longbench_code_qa": {"data": "data.json"},
    "code_repository": {},
    "babilong_qa1": {},
    "babilong_qa2": {},
    "babilong_qa3": {},
    "random": {},
}
SHORT = {"niah_multiquery_enum": {"keys": 4}, "cwe": {"words": 8}, "fwe_enum": {"words": 12}}
VOCABULARIES = ("qwen", "tekken", "mistral", "tiny")


@pytest.fixture(scope="module")
def longbench(tmp_path_factory):
    """Rows of LongBench-v2's shape, one with a document longer than 1.04M tokens in every vocabulary."""
    import orjson

    sources = sorted(Path(os.__file__).parent.rglob("*.py"))
    text = "".join(source.read_text("utf-8", errors="ignore") for source in sources[:3000])
    folder = tmp_path_factory.mktemp("longbench")
    (folder / "short.json").write_bytes(orjson.dumps([row(text[:60_000])]))
    (folder / "long.json").write_bytes(orjson.dumps([row(text[:9_000_000])]))
    return folder


def check(vocabulary, request, longbench, name, task, length):
    folder = vocabulary_folder(request.config, name)
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"there is no tokenizer in {folder}")
    tokenizer = vocabulary(name)
    params = {**TASKS[task], **(SHORT.get(task, {}) if length < 2000 else {})}
    if "data" in params:
        params["data"] = str(longbench / ("short.json" if length < 9000 else "long.json"))
    record = generators.build(task, context_tokens=length, tokenizer=tokenizer, seed=11, **params)
    assert len(record.input_ids) == length
    if task == "random":
        return
    if length <= 4096:
        assert list(audit(record, tokenizer)) == []
    else:
        assert list(audit_answer(record)) == []
    special = {token.content for token in original(folder).get_added_tokens_decoder().values()}
    if not any(token in record.content for token in special):
        # Documents that spell a special token differ from this on purpose.
        assert original(folder).encode(record.text, add_special_tokens=False).ids == record.input_ids.tolist()


@cache
def original(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("task", TASKS)
def test_exact_at_short_lengths(vocabulary, request, longbench, name, task):
    for length in (512, 4096):
        check(vocabulary, request, longbench, name, task, length)


@pytest.mark.slow
@pytest.mark.parametrize("length", [131_072, 1_040_000])
@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("task", TASKS)
def test_exact_at_long_lengths(vocabulary, request, longbench, name, task, length):
    check(vocabulary, request, longbench, name, task, length)
