"""A tokenizer that cannot be the model's is refused from its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.compose import load
from harness.models.vocabulary import tokenizer_problem
from harness.sweep.cells import expand
from harness.sweep.plan import State, make_plan

TINY = Path("harness/engine/tiny/checkpoint")
CONFIG = {"text_config": {"vocab_size": 100}}


def tokenizer(folder: Path, vocabulary, added=()) -> Path:
    spec = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": i, "content": f"<{i}>"} for i in added]}
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    return folder


def words(count: int) -> dict[str, int]:
    return {f"w{i}": i for i in range(count)}


@pytest.mark.parametrize(
    ("vocabulary", "added"),
    [(words(100), ()), (words(85), (85, 86)), ([[f"w{i}", 0.0] for i in range(96)], ())],
)
def test_a_vocabulary_that_fits_passes(tmp_path, vocabulary, added):
    assert tokenizer_problem(tokenizer(tmp_path, vocabulary, added), CONFIG) == ""


@pytest.mark.parametrize(
    ("vocabulary", "added", "said"),
    [
        (words(101), (), "ids up to 100"),
        (words(90), (100,), "ids up to 100"),
        (words(60), (), "knows 60 tokens"),
        ({}, (), "no vocabulary"),
        ("text", (), "no vocabulary"),
        ({"w": "x"}, (), "no vocabulary"),
    ],
)
def test_another_models_vocabulary_is_named(tmp_path, vocabulary, added, said):
    assert said in tokenizer_problem(tokenizer(tmp_path, vocabulary, added), CONFIG)


def test_a_config_without_size_is_not_compared(tmp_path):
    assert tokenizer_problem(tokenizer(tmp_path, words(3)), {}) == ""


@pytest.mark.parametrize("body", [None, "", "{", "[]", "{}", '{"model": 3}'])
def test_a_missing_or_damaged_file_is_named(tmp_path, body):
    if body is not None:
        (tmp_path / "tokenizer.json").write_text(body)
    assert "tokenizer.json" in tokenizer_problem(tmp_path, CONFIG)


def test_a_damaged_tokenizer_config_is_named(tmp_path):
    (tokenizer(tmp_path, words(100)) / "tokenizer_config.json").write_text("")
    assert "tokenizer_config.json is not JSON" in tokenizer_problem(tmp_path, CONFIG)


def test_a_point_of_such_a_checkpoint_starts_no_server(tmp_path):
    for path in TINY.iterdir():
        if path.name != "tokenizer.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    plan = make_plan(expand(load(["hardware=cpu", f"model.path={tmp_path}"])), tmp_path / "results")
    (planned,) = plan.points
    assert planned.state is State.REFUSED and "tokenizer.json" in planned.reason
