"""Data files of a user with any damage: a record comes out, or a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import generators
from generators.tokenizer import Tokenizer
from harness.errors import InputError
from tests.generators.cases import DATA

TASKS = {
    "longbench_code_qa": ("longbench.json", "data"),
    "babilong_qa1": ("babilong.jsonl", "data"),
    "published": ("published.jsonl", "path"),
}
EDITS = st.lists(
    st.tuples(
        st.integers(0),
        st.integers(0, 5),
        st.sampled_from([b"null", b"{}", b"[]", b'"', b"1e999", b"\\ud800", b"\xff", b"\n", b""])
        | st.binary(max_size=5),
    ),
    max_size=3,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@settings(max_examples=150)
@given(st.sampled_from(sorted(TASKS)), EDITS, st.none() | st.integers(0, 400))
def test_any_damage_is_a_record_or_a_sentence(
    small: Tokenizer, folder: Path, task: str, edits: list[tuple[int, int, bytes]], cut: int | None
) -> None:
    name, knob = TASKS[task]
    body = bytearray((DATA / name).read_bytes())
    for place, length, put in edits:
        at = place % (len(body) + 1)
        body[at : at + length] = put
    path = folder / name
    path.write_bytes(body[:cut])
    try:
        record = generators.build(
            task, context_tokens=700, tokenizer=small, seed=0, index=0, **{knob: str(path)}
        )
    except InputError as error:
        assert str(error)
        return
    assert record.gold and (not record.exact or record.token_count == 700)
