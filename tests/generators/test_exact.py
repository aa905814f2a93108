"""Every record is exactly as long as asked for, holds its needles whole, and answers its question."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import generators
from generators.rng import Stream
from generators.scoring import score
from generators.tasks import resolve
from generators.templates import ideal_answer
from generators.verify import audit
from harness.errors import ConfigError, InputError
from tests.generators.cases import TASKS, in_data

EXACT = [(task, params) for task, params in TASKS if task != "published"]
SCORED = [(task, params) for task, params in EXACT if task != "random"]


@settings(max_examples=150)
@given(
    case=st.sampled_from(EXACT),
    length=st.integers(700, 3000),
    seed=st.integers(0, 2**32),
    index=st.integers(0, 1),
)
# The document ends within the name delta_step_1..., of which the one asked for is a beginning.
@example(case=("code_repository", {"root": "repository"}), length=947, seed=160, index=0)
def test_any_length_and_seed(small, case, length, seed, index):
    task, params = case
    record = generators.build(
        task, context_tokens=length, tokenizer=small, seed=seed, index=index, **in_data(params)
    )
    assert len(record.input_ids) == length
    assert list(audit(record, small)) == []


@pytest.mark.parametrize("task", ["niah_single", "niah_multiquery", "vt", "babilong_qa1"])
def test_every_length_from_the_least(small, task):
    """The error names the least length; that one and each of the next can be built."""
    with pytest.raises(InputError, match=r"alone take ([\d,]+)") as caught:
        generators.build(task, context_tokens=40, tokenizer=small, seed=3)
    assert "40 tokens are too few" in str(caught.value)
    least = int(str(caught.value).split("alone take ")[1].split(".")[0].replace(",", ""))
    with pytest.raises(InputError, match="too few"):
        generators.build(task, context_tokens=least - 1, tokenizer=small, seed=3)
    built = 0
    for length in (least, *range(least + 2, least + 60)):
        record = generators.build(task, context_tokens=length, tokenizer=small, seed=3)
        assert len(record.input_ids) == length
        assert list(audit(record, small)) == []
        built += 1
    assert built == 59


@pytest.mark.parametrize(("task", "params"), SCORED)
def test_the_ideal_answer_scores_full_and_none_scores_nothing(small, task, params):
    record = generators.build(task, context_tokens=1500, tokenizer=small, seed=5, **in_data(params))
    answer = ideal_answer(task, record.gold, record.details.get("keys", ()))
    assert score(task, record, answer) == {"strict": 1.0, "upstream": 1.0}
    assert score(task, record.summary(), "") == {"strict": 0.0, "upstream": 0.0}


def test_records_of_a_seed_differ_and_a_record_is_the_same_again(small):
    def ids(seed, index):
        return generators.build("vt", context_tokens=600, tokenizer=small, seed=seed, index=index).sample_id

    assert len({ids(seed, index) for seed in range(3) for index in range(4)}) == 12
    assert ids(1, 2) == ids(1, 2)


def test_sample_ids_tell_records_with_equal_answers_apart(small):
    a = generators.build("niah_single", context_tokens=600, tokenizer=small, seed=1)
    b = generators.build("niah_single", context_tokens=601, tokenizer=small, seed=1)
    assert a.gold == b.gold
    assert a.sample_id != b.sample_id


def test_filler_is_not_tiled(small):
    record = generators.build("niah_single", context_tokens=60_000, tokenizer=small, seed=0)
    sentences = record.content.split("Text: ")[1].split("\n\n")[0].replace("?", ".").split(". ")
    # No run of three sentences comes twice.
    runs = list(zip(sentences, sentences[1:], sentences[2:], strict=False))
    assert len(set(runs)) == len(runs) > 1500


def test_without_the_whole_check_the_bytes_are_the_same(small):
    for task, params in EXACT:
        a, b = (
            generators.build(
                task, context_tokens=1200, tokenizer=small, seed=2, check=check, **in_data(params)
            ).to_json()
            for check in (True, False)
        )
        assert a == b, task


def test_depth_percent_places_the_needle(small):
    places = []
    for depth in (0.0, 50.0, 100.0):
        record = generators.build(
            "niah_single", context_tokens=8000, tokenizer=small, seed=0, depth_percent=depth
        )
        places.append(record.needles[0].token_offset / 8000)
    assert places[0] < 0.03
    assert 0.45 < places[1] < 0.55
    assert places[2] > 0.9


@pytest.mark.parametrize(
    ("task", "params", "message"),
    [
        ("nia_single", {}, "There is no task"),
        ("vt", {"hop": 3}, "has no parameter hop"),
        ("vt", {"hops": 0}, "hops=0 must be a whole number"),
        ("vt", {"chains": True}, "chains=True"),
        ("fwe", {"alpha": 1.0}, "alpha=1.0"),
        ("fwe", {"words": 5, "vocabulary": 5}, "vocabulary=5"),
        ("cwe", {"words": 9000}, "too many"),
        ("cwe", {"common_repeats": 3}, "both"),
        ("cwe", {"common_repeats": 2, "uncommon_repeats": 2}, "common_repeats=2"),
        ("niah_single", {"haystack_kind": "essay"}, "haystack_kind='essay' is unknown"),
        ("niah_single", {"haystack_kind": "prose"}, "needs files"),
        ("niah_single", {"depth_percent": 101}, "depth_percent"),
        ("longbench_code_qa", {}, "needs data=..."),
        ("babilong_qa2", {"data": "x", "facts": 3}, "leave facts out"),
        ("babilong_qa2", {"data": 5}, "data=5 must be text or null"),
        ("babilong_qa2", {"files": "book.txt"}, "files='book.txt' must be a list"),
        ("babilong_qa2", {"files": [3]}, r"each item of which is text, such as files=\[a.txt,b.txt\]"),
        ("vt", {"hops": "abc"}, "hops='abc' must be a whole number"),
        ("vt", {"hops": 1.5}, "hops=1.5 must be a whole number"),
        ("vt", {"hops": None}, "hops=None must be a whole number"),
        ("vt", {"hops": 2**64}, "cannot be stored"),
        ("fwe", {"alpha": "steep"}, "alpha='steep' must be a number"),
        ("fwe", {"alpha": True}, "alpha=True must be a number"),
        ("niah_single", {"depth_percent": "end"}, "must be a number or null"),
        ("published", {"path": "a\udcff"}, "cannot be stored"),
        ("niah_multiquery_enum", {"keys": 0}, "keys=0 must be a whole number of at least 1"),
        ("niah_multikey", {"keys": -3}, "keys=-3"),
        ("niah_multivalue", {"values": 0}, "values=0"),
        ("niah_single", {"keys_kind": "digits"}, "keys_kind='digits' is unknown"),
        ("niah_single", {"depth_percent": float("nan")}, "depth_percent=nan"),
        ("fwe_enum", {"words": 0}, "words=0"),
        ("cwe", {"words": -1}, "words=-1"),
        ("babilong_qa1", {"facts": 1}, "facts=1"),
        ("babilong_qa1", {"placement": "here"}, "placement='here' is unknown"),
        ("code_repository", {"root": ""}, "root= is empty"),
        ("babilong_qa1", {"files": [""]}, "files= is empty"),
    ],
)
def test_senseless_requests_are_refused(small, task, params, message):
    with pytest.raises(ConfigError, match=message):
        resolve(task, params)  # without a tokenizer and a length: already when a sweep is planned
    with pytest.raises(ConfigError, match=message):
        generators.build(task, context_tokens=1000, tokenizer=small, seed=0, **params)


@pytest.mark.parametrize(
    ("task", "params"),
    [
        ("niah_multiquery_enum", {"keys": 48}),
        ("cwe", {"words": 60}),
        ("fwe_enum", {"words": 200}),
        ("babilong_qa3", {"facts": 38}),
        ("code_repository", {"root": "repository"}),
        ("longbench_code_qa", {"data": "longbench.json"}),
    ],
)
def test_too_short_a_context_is_an_error_with_both_numbers(small, task, params):
    with pytest.raises(InputError, match=r"^100 tokens are too few: .* alone take [\d,]+\."):
        generators.build(task, context_tokens=100, tokenizer=small, seed=0, **in_data(params))


@pytest.mark.parametrize(
    ("task", "params"),
    [
        ("niah_multikey", {"keys": 10**9}),
        ("niah_multivalue", {"values": 10**9, "values_kind": "uuids"}),
        ("vt", {"hops": 10**9}),
        ("vt", {"chains": 10**12}),
        ("cwe", {"common_repeats": 10**9, "uncommon_repeats": 10**9 - 1}),
        ("fwe", {"words": 10**6}),
    ],
)
def test_absurd_numbers_are_refused_at_once(small, task, params):
    with pytest.raises(InputError, match=r"^1,000 tokens are too few: .* alone take [\d,]+\."):
        generators.build(task, context_tokens=1000, tokenizer=small, seed=0, **params)


@pytest.mark.parametrize(("name", "value"), [("context_tokens", 10**9), ("seed", 2**63), ("index", -1)])
def test_lengths_seeds_and_numbers_beyond_all_measure_are_refused(small, name, value):
    request = {"context_tokens": 1000, "seed": 0, "index": 0, name: value}
    with pytest.raises(ConfigError, match=f"{name}={value} must be a whole number"):
        generators.build("vt", tokenizer=small, **request)


def test_words_that_are_too_many_to_repeat_leave_the_common_ones_alone(small):
    params = {"words": 2, "common_repeats": 10**6 + 1, "uncommon_repeats": 10**6}
    with pytest.raises(InputError, match="too few"):
        generators.build("cwe", context_tokens=900, tokenizer=small, seed=0, **params)
    record = generators.build(
        "cwe", context_tokens=900, tokenizer=small, seed=0, words=2, common_repeats=50, uncommon_repeats=49
    )
    assert list(audit(record, small)) == []


@pytest.mark.parametrize("kind", ["numbers", "words", "uuids"])
@pytest.mark.parametrize("length", [1200, 1233, 4001])
def test_needles_of_any_kind_can_be_the_haystack(vocabulary, kind, length):
    """What is left after the last long needle is filled by as many sentences as it takes."""
    tokenizer = vocabulary("qwen")
    for seed in range(3):
        record = generators.build(
            "niah_multikey",
            context_tokens=length,
            tokenizer=tokenizer,
            seed=seed,
            keys=2,
            haystack_kind="needles",
            keys_kind=kind,
            values_kind=kind,
        )
        assert len(record.input_ids) == length
        assert list(audit(record, tokenizer)) == []


def test_random_ids_are_ordinary_and_tagged(small):
    record = generators.build("random", context_tokens=5000, tokenizer=small, seed=0)
    assert record.cost_only
    assert record.text == ""
    head, tail = small.first_ids(""), small.encode("")[len(small.first_ids("")) :]
    middle = record.input_ids[len(head) : -len(tail)]
    assert len(record.input_ids) == 5000
    assert set(middle.tolist()) <= set(small.plain_ids.tolist())
    assert len(set(middle.tolist())) > 0.9 * len(small.plain_ids)
    assert all(np.isnan(value) for value in score("random", record, "x").values())


def test_splitmix64_reference_values():
    """The first outputs of the published algorithm for seed 0."""
    stream = Stream("any")
    stream._key = np.uint64(0)
    wanted = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [int(word) for word in stream.words(3)] == wanted


def test_streams_are_used_up_but_children_are_not_affected():
    a, b = Stream("x", 1), Stream("x", 1)
    first = a.words(5).tolist()
    assert first[3:] == [b.words(3), b.words(2)][1].tolist()
    assert a.child("c").words(2).tolist() == b.child("c").words(2).tolist() != first[:2]


@given(limit=st.integers(1, 5000), share=st.floats(0, 1), seed=st.integers(0, 1000))
def test_distinct_draws_are_distinct(limit, share, seed):
    drawn = Stream("d", seed).distinct(limit, int(limit * share))
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= number < limit for number in drawn)
