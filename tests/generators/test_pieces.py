"""Pieces tokenised together have the ids that each has by itself, or are tokenised one by one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generators.lexicon import Lexicon
from generators.pieces import Rows, cut, stand_alone
from generators.tokenizer import Tokenizer
from harness.errors import InputError
from tests.generators.cases import DATA
from tests.generators.test_tokenizer import crossing_words, unigram, wordpiece, write

SMALL = DATA / "small_bpe"


def alone(tokenizer, piece):
    """The ids of one piece after a full stop, tokenised with nothing else."""
    before = len(tokenizer.first_ids("."))
    after = len(tokenizer.encode(".")) - before
    whole = tokenizer.encode("." + piece).tolist()
    return whole[before : len(whole) - after]


words = st.text(min_size=1, max_size=12).filter(lambda word: word.strip() == word)


@settings(max_examples=150)
@given(st.lists(words, max_size=12))
def test_rows_are_the_ids_of_each_piece(small, found):
    pieces = [f" {word}" for word in found]
    if any("\ue000" <= character <= "\ue005" for piece in pieces for character in piece):
        return
    rows = small.piece_rows(pieces).to_list()
    assert [row.tolist() for row in rows] == [alone(small, piece) for piece in pieces]


@settings(max_examples=100)
@given(st.lists(st.lists(words, min_size=1, max_size=8), max_size=6))
def test_long_pieces_are_the_ids_of_each_piece(small, found):
    pieces = ["".join(f" {word}" for word in each) for each in found]
    if any("\ue000" <= character <= "\ue005" for piece in pieces for character in piece):
        return
    lexicon = Lexicon(small)
    for _ in range(2):  # the second time every word is known
        rows = lexicon.long_rows(pieces)
        assert [row.tolist() for row in rows] == [alone(small, piece) for piece in pieces]
    assert len(lexicon) == len({word for piece in pieces for word in lexicon_words(piece)})


def lexicon_words(piece):
    """Words of a piece as the tokenizer may not merge them: parted by single spaces between non-spaces."""
    found = [piece[1]]
    for place, character in enumerate(piece[2:], 2):
        single = character == " " and not piece[place - 1].isspace() and not piece[place + 1].isspace()
        found = [*found, ""] if single else [*found[:-1], found[-1] + character]
    return found


@pytest.mark.parametrize(
    ("name", "known"), [("qwen", True), ("tekken", True), ("mistral", False), ("tiny", True)]
)
def test_which_real_vocabularies_are_cut_by_bytes(vocabulary, name, known):
    assert vocabulary(name).splits_before_spaces is known


@pytest.mark.parametrize("make", [wordpiece, unigram, lambda: unigram(False), crossing_words])
def test_other_kinds_of_tokenizer_are_not_cut_by_bytes(tmp_path, make):
    tokenizer = Tokenizer.load(write(tmp_path, make(), "[{{ messages[0]['content'] }}]"))
    assert not tokenizer.splits_before_spaces
    pieces = [" one", " two", " three"]
    rows = tokenizer.piece_rows(pieces).to_list()
    assert [row.tolist() for row in rows] == [row.tolist() for row in tokenizer.piece_ids(pieces)]


def changed(tmp_path, **changes):
    spec = json.loads((SMALL / "tokenizer.json").read_text())
    model = changes.pop("model", {})
    return Tokenizer.load(write(tmp_path, {**spec, **changes, "model": {**spec["model"], **model}}))


SPLIT = {"type": "Split", "pattern": {"Regex": r"\w+|\W"}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": None},
        {"pre_tokenizer": BYTES},  # no pattern: tokens may span words
        {"pre_tokenizer": {**BYTES, "use_regex": True, "add_prefix_space": True}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{**SPLIT, "behavior": "Removed"}, BYTES]}},
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "bb"}},
        {"model": {"dropout": 0.1}},
        {"model": {"end_of_word_suffix": "</w>"}},
    ],
)
def test_a_tokenizer_that_is_not_known_to_add_up_is_not_cut_by_bytes(tmp_path, changes):
    assert not changed(tmp_path, **changes).splits_before_spaces


def test_a_pattern_that_splits_after_spaces_is_found_out(tmp_path):
    after = {"type": "Split", "pattern": {"Regex": r"\S+ ?"}, "behavior": "Isolated", "invert": False}
    steps = {"type": "Sequence", "pretokenizers": [after, BYTES]}
    assert not changed(tmp_path, pre_tokenizer=steps).splits_before_spaces
    steps["pretokenizers"][0] = {**after, "pattern": {"Regex": r" ?\S+|\s+(?!\S)|\s+"}}
    assert changed(tmp_path, pre_tokenizer=steps).splits_before_spaces


def test_bytes_that_a_vocabulary_lacks_are_noticed(tmp_path):
    spec = json.loads((SMALL / "tokenizer.json").read_text())
    vocabulary = {token: i for token, i in spec["model"]["vocab"].items() if "q" not in token}
    merges = [merge for merge in spec["model"]["merges"] if "q" not in "".join(merge)]
    tokenizer = changed(tmp_path, model={"vocab": vocabulary, "merges": merges})
    assert tokenizer.splits_before_spaces
    rows = tokenizer.piece_rows([" a", " quite", " b"]).to_list()
    assert [row.tolist() for row in rows] == [alone(tokenizer, piece) for piece in (" a", " quite", " b")]


def test_text_that_is_not_in_normal_form_is_tokenised_piece_by_piece(vocabulary):
    tokenizer = vocabulary("qwen")
    pieces = [" cafe\u0301", " caf\u00e9", " x"]
    rows = [row.tolist() for row in tokenizer.piece_rows(pieces).to_list()]
    assert rows == [alone(tokenizer, piece) for piece in pieces]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("piece", [" a\ue004", " \ue0000\ue001"])
def test_private_markers_in_pieces_are_not_taken_for_text(small, piece):
    try:
        rows = small.piece_rows([" a", piece, " b"]).to_list()
    except InputError as error:
        assert "U+E004" in str(error)
    else:
        assert rows[2].tolist() == alone(small, " b")


def test_cuts_fall_between_tokens_or_not_at_all():
    lengths = np.asarray([0, 1, 2, 3])
    raw = np.asarray([1, 3, 2], dtype=np.uint32)
    assert cut(raw, lengths, 1, np.asarray([4, 6])).tolist() == [1, 2, 3]
    assert cut(raw, lengths, 1, np.asarray([3, 6])) is None
    assert cut(raw, lengths, 1, np.asarray([4, 7])) is None
    assert cut(np.asarray([1, 0, 3, 2], dtype=np.uint32), lengths, 1, np.asarray([4, 6])) is None


@pytest.mark.parametrize("piece", ["", " ", "a", "  a", " a ", " a\n", "\n", " \u00a0a"])
def test_pieces_that_might_merge_do_not_stand_alone(piece):
    assert not stand_alone([" a", piece])


def test_rows_are_taken_in_any_order():
    rows = Rows.of_list([np.asarray(row, dtype=np.uint32) for row in ([1, 2], [], [3])])
    assert rows.take(np.asarray([2, 0, 1, 2])).tolist() == [3, 1, 2, 3]
    assert rows.take(np.asarray([], dtype=np.int64)).tolist() == []
    assert [row.tolist() for row in rows.to_list()] == [[1, 2], [], [3]]
