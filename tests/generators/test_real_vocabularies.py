"""Exact at every length with real vocabularies: byte-level BPE, SentencePiece, and the shipped model's."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import tokenizers

import generators
from benchmarks import vocabularies
from benchmarks.inputs import TASKS, write_longbench
from generators.audits import audit_answer
from generators.verify import audit
from tests.generators.conftest import vocabulary_folder

SHORT = {"niah_multiquery_enum": {"keys": 4}, "cwe": {"words": 8}, "fwe_enum": {"words": 12}}


@pytest.fixture(scope="module")
def longbench(tmp_path_factory):
    """Rows of LongBench-v2's shape, one with a document longer than 1.04M tokens in every vocabulary."""
    folder = tmp_path_factory.mktemp("longbench")
    write_longbench(folder / "short.json", 60_000)
    write_longbench(folder / "long.json", 9_000_000)
    return folder


def check(vocabulary, request, longbench, name, task, length):
    folder = vocabulary_folder(request.config, name)
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


@pytest.mark.parametrize("name", vocabularies.NAMES)
@pytest.mark.parametrize("task", TASKS)
def test_exact_at_short_lengths(vocabulary, request, longbench, name, task):
    for length in (512, 4096):
        check(vocabulary, request, longbench, name, task, length)


@pytest.mark.slow
@pytest.mark.parametrize("length", [131_072, 1_040_000])
@pytest.mark.parametrize("name", vocabularies.NAMES)
@pytest.mark.parametrize("task", TASKS)
def test_exact_at_long_lengths(vocabulary, request, longbench, name, task, length):
    check(vocabulary, request, longbench, name, task, length)
