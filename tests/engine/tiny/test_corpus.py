"""Training text: repeatable, shaped like what the generators ask, and packed without loss."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from tokenizers import Tokenizer

from generators import Tokenizer as PromptTokenizer
from generators import build
from generators.rng import Stream
from harness.engine.tiny import checkpoint_path, corpus
from harness.engine.tiny.batches import SHORT_ROW, Batches, encode, stretched

SIZES = (120, 400, 1000)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(checkpoint_path() / "tokenizer.json"))


def drawn(count: int, label: str = "a") -> list[corpus.Document]:
    return [corpus.document(Stream(label, i), SIZES[i % 3]) for i in range(count)]


def test_same_labels_same_documents() -> None:
    assert drawn(60) == drawn(60)
    assert drawn(60) != drawn(60, "b")


def test_all_kinds_are_drawn() -> None:
    kinds = {made.kind for made in drawn(300)}
    assert kinds >= {"niah_multiquery_enum", "niah_multiquery", "niah_multivalue", "vt", "cwe", "fwe"}
    assert kinds >= {"copy", "story"}


def test_retrieval_answers_are_in_the_text() -> None:
    for index in range(40):
        made = corpus.retrieval(Stream("r", index), 5, 6, 4, form="enum")
        lines = made.answer.splitlines()
        assert len(lines) == 4
        for number, line in enumerate(lines, 1):
            match = re.fullmatch(rf"{number}\. (\S+): (\d{{7}})", line)
            assert match, line
            key, value = match.groups()
            assert f" One secret number for {key} is {value}." in made.message
        order = [line.split()[1].rstrip(":") for line in lines]
        question = made.message.split("Question:")[1]
        assert sorted(order, key=question.index) == order


def test_counted_words_are_the_most_frequent() -> None:
    for index in range(40):
        for made in (
            corpus.common_words(Stream("c", index), 40, 3),
            corpus.frequent_words(Stream("f", index), 60, 3),
        ):
            words = re.findall(r"[a-z]+", made.message.split(":", 1)[1].split("Question:")[0])
            counts = {word: words.count(word) for word in set(words)}
            gold = [line.split()[1] for line in made.answer.splitlines()]
            least = min(counts[word] for word in gold)
            assert all(count < least for word, count in counts.items() if word not in gold), made


@pytest.mark.parametrize(
    ("task", "params"),
    [
        ("niah_multiquery_enum", {"keys": 4}),
        ("niah_single", {}),
        ("vt", {"hops": 2}),
        ("fwe", {"words": 3}),
    ],
)
def test_generated_prompts_have_the_words_of_training(task: str, params: dict[str, int]) -> None:
    """Opening and question of a prompt at serving time occur in training, numbers and names aside."""
    record = build(
        task,
        context_tokens=600,
        tokenizer=PromptTokenizer.load("tiny"),
        seed=3,
        index=1,
        check=True,
        **params,
    )
    made = next(m for m in drawn(600, "match") if m.kind == task)
    opening = record.content.split("\n\n")[0]
    assert made.message.startswith(opening)

    def skeleton(message: str) -> set[str]:
        question = message.split("Question:")[1]
        return set(re.findall(r"[A-Za-z]+", question.partition("keys:")[0]))

    shared = skeleton(record.content) & skeleton(made.message)
    assert len(shared) >= 0.7 * len(skeleton(record.content))


def test_training_prompts_are_serving_prompts(tokenizer: Tokenizer) -> None:
    serving = PromptTokenizer.load("tiny")
    for made in drawn(40):
        assert encode(tokenizer, made)[0] == serving.encode(made.message).tolist()


def test_rows(tokenizer: Tokenizer) -> None:
    batches = Batches(tokenizer, seed=1, tokens_per_step=2048)
    for tokens in (SHORT_ROW, 512, 1024):
        batch = batches.batch(5, tokens)
        assert batch.ids.shape == batch.answer.shape == batch.positions.shape
        assert batch.ids.shape[1] == tokens + 1
        assert batch.ids.equal(batches.batch(5, tokens).ids)
        assert not batch.ids.equal(batches.batch(6, tokens).ids)
        assert 0.05 < batch.answer.float().mean() < 0.9


def test_positions_only_grow_and_reach_far() -> None:
    rows = [stretched(Stream("p", i), 600) for i in range(40)]
    assert all(b > a for row in rows for a, b in pairwise(row))
    assert any(row == list(range(600)) for row in rows)
    assert max(row[-1] for row in rows) > 16384
    assert stretched(Stream("p"), 200) == list(range(200))
