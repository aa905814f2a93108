"""A changed text is another input: no corpus is stale, and none is of two texts."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from generators import corpus as corpora
from generators import origins
from generators.corpus import Request, build_corpus
from generators.tasks import TASKS
from generators.verify import verify
from harness.errors import InputError
from tests.generators.cases import DATA

OLD = "The old harbour was quiet that day. " * 400
NEW = "A new bridge stood beside the river. " * 400
# Parameters that are text or lists of it and name no file.
NO_PATHS = {
    "haystack_kind", "values_kind", "keys_kind", "domain", "data_split", "data_config", "placement", "joiner",
    "sha256",
}  # fmt: skip


def request(**params) -> Request:
    return Request("niah_single", 700, str(DATA / "small_bpe"), params={"haystack_kind": "prose", **params})


def build(folder: Path, count: int, **params):
    return build_corpus(request(**params), count=count, folder=folder / "out", workers=1)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_changed_text_is_a_corpus_of_its_own(tmp_path, kind):
    text = tmp_path / "texts" / "my.txt"
    text.parent.mkdir()
    given = [str(text if kind == "file" else text.parent)]
    text.write_text(OLD)
    first = build(tmp_path, 2, files=given)
    bytes_of_first = first.records.read_bytes()
    text.write_text(NEW)
    (problem, *_) = verify(first.records)
    assert problem == f"{given[0]} is another text now than the corpus was made from"
    second = build(tmp_path, 2, files=given)
    assert second.name != first.name and b"new bridge" in second.records.read_bytes()
    larger = build(tmp_path, 4, files=given)
    assert larger == second
    lines = larger.records.read_bytes().splitlines()
    assert len(lines) == 4 and all(b"new bridge" in line and b"harbour" not in line for line in lines)
    assert first.records.read_bytes() == bytes_of_first
    text.write_text(OLD)
    assert build(tmp_path, 1, files=given) == first and verify(first.records) == []


def test_a_text_that_changes_meanwhile_gives_no_mixed_corpus(tmp_path, monkeypatch):
    text = tmp_path / "my.txt"
    text.write_text(OLD)
    whole = corpora.build

    def edit_and_build(*args, index, **kwargs):
        if index == 1:
            text.write_text(NEW)
        return whole(*args, index=index, **kwargs)

    monkeypatch.setattr(corpora, "build", edit_and_build)
    with pytest.raises(InputError, match="changed while it was read"):
        build(tmp_path, 3, files=[str(text)])
    assert not list((tmp_path / "out").glob("*.jsonl"))
    kept = [part.read_bytes() for part in (tmp_path / "out").glob("*.parts/*.json")]
    assert len(kept) == 1 and b"harbour" in kept[0]


def test_changed_word_lists_are_another_corpus(tmp_path, monkeypatch):
    wanted = Request("niah_single", 700, str(DATA / "small_bpe"))
    first = build_corpus(wanted, count=1, folder=tmp_path, workers=1)
    assert corpora.READ not in json.loads(first.manifest.read_text())
    monkeypatch.setattr(origins, "words_sha256", lambda: "0" * 64)
    assert build_corpus(wanted, count=1, folder=tmp_path, workers=1).name != first.name


def test_the_word_lists_are_those_of_the_generators_version():
    """Other lists are another GENERATOR_VERSION; then pin them here."""
    assert origins.words_sha256() == origins.SHIPPED_WORDS_SHA256


def test_every_parameter_that_is_a_path_is_known():
    for name, task in TASKS.items():
        hints = inspect.get_annotations(task.builder, eval_str=True)
        texts = {parameter for parameter in task.defaults if "str" in str(hints[parameter])}
        assert texts <= NO_PATHS | set(origins.PATHS), name


def test_a_files_digest_is_its_sha256_and_what_is_on_the_hub_has_none(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abc")
    given = str(tmp_path / "a.txt")
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert origins.file_digests({"files": [given], "data": "somebody/a-data-set"}) == {given: abc}
    with pytest.raises(InputError, match="There is no file or folder"):
        origins.file_digests({"files": [str(tmp_path / "b.txt")]})


@pytest.mark.parametrize(
    ("params", "read", "ignored"),
    [({"data": "."}, "rows.jsonl", "notes.txt"), ({"root": "."}, "a.py", "a.txt")],
)
def test_a_folders_digest_is_of_the_files_that_are_read(tmp_path, monkeypatch, params, read, ignored):
    monkeypatch.chdir(tmp_path)
    Path(read).write_text("1")
    before = origins.file_digests(params)
    Path(ignored).write_text("2")
    assert origins.file_digests(params) == before
    Path(read).write_text("3 ")
    assert origins.file_digests(params) != before
