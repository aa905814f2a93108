"""Overrides mean what they say: what is written parses back, what is typed is read or explained."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.sweep import multirun
from harness.sweep.overrides import check_overrides, emit, emit_all

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def read_back(text: str):
    override = OverridesParser.create().parse_override(text)
    assert not override.is_sweep_override()
    return plain(override.value())


def plain(value):
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    return getattr(value, "text", value)


@settings(max_examples=100)
@given(VALUES)
@example("a,b")
@example("it's")
@example("\\'")
@example("\\\\")
@example("1e6")
@example("null")
@example("/data/x=y")
@example('{"a": 1, "b": [1,2]}')
@example("--foo a,b")
def test_what_is_emitted_parses_back_or_is_refused(value):
    try:
        text = emit("key", value)
    except ConfigError:
        assert cannot_be_carried(value)
        return
    back = read_back(text)
    assert back == value
    assert type(back) is type(value)


def cannot_be_carried(value) -> bool:
    """Interpolations, and mapping keys that are words of the grammar."""
    if isinstance(value, str):
        return "${" in value
    if isinstance(value, list):
        return any(map(cannot_be_carried, value))
    if isinstance(value, dict):
        return any(key in {"null", "true", "false", "nan", "inf"} for key in value) or any(
            map(cannot_be_carried, value.values())
        )
    return False


@pytest.mark.parametrize(
    "value",
    ["a,b", "it's", "1e6", "0.5.23", "x=y", "", " a ", "null", "true", "[1]", "{a:1}", "--flag=1,2", 'q"q',
     "~/m", 7, 1e6, float("inf"), None, True, [1024, 1_040_000], ["--a=1,2", "--b"],
     {"a": 1, "b": [1, {"c": "x"}]}, [], {}],
)  # fmt: skip
def test_ordinary_values_are_never_refused(value):
    assert read_back(emit("server.extra", value)) == value


@pytest.mark.parametrize(
    ("key", "value"),
    [("k", "${other}"), ("k", {"a b": 1}), ("k", {1: 2}), ("k", object()), ("a b", 1), ("~k", 1), ("", 1)],
)
def test_what_hydra_cannot_carry_is_refused(key, value):
    with pytest.raises(ConfigError):
        emit(key, value)


def test_emit_all_keeps_order():
    assert emit_all({"b": 1, "a": "x"}) == ["b=1", "a='x'"]


@pytest.mark.parametrize(
    ("text", "value", "sweep"),
    [
        ("model=a,b", ["a", "b"], True),
        ("model='a,b'", "a,b", False),
        ("ctx=[1024,1040000]", [1024, 1_040_000], False),
        ("ctx=[1024],[2048]", [[1024], [2048]], True),
        ("draft=null,6", [None, 6], True),
        ("extra='--foo a,b'", "--foo a,b", False),
        ("args=['--a=1,2','--b']", ["--a=1,2", "--b"], False),
        ('json=\'{"a": 1, "b": [1,2]}\'', '{"a": 1, "b": [1,2]}', False),
        ("ver=0.5.23", "0.5.23", False),
        ("depth=range(3,6)", [3, 4, 5], True),
        ("~experiment", None, False),
        ("model.name='1e6'", "1e6", False),
        ("context=8192", 8192, False),
    ],
)
def test_what_users_type_is_read(text, value, sweep):
    (parsed,) = check_overrides([text])
    assert (parsed.value, parsed.is_sweep) == (value, sweep)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('json={"a":1}', "single quotes"),
        ("path=/data/x=y", "path='/data/x=y'"),
        ("note=it's", r"note='it\'s'"),
        ("ctx=[1,2", "brackets"),
        ("justaword", "key=value"),
        ("a b=1", "no configuration key"),
        ("model.name=1e6", "model.name='1e6'"),
        ("server.image=26.10", "server.image='26.10'"),
        ("server.image=26.10,26.11", "server.image is text"),
        ("depth=range(1,1000000000000)", "more than 10,000 values"),
        ("depth=shuffle(range(stop=1e12,start=1))", "more than 10,000 values"),
        ("depth=range(0,1,step=nan)", "no end"),
        ("depth=range(1,3,0)", "no end"),
        ("depth=range(0)", "a sweep over no value"),
        ("depth=range(5,2)", "write the values out, depth=a,b"),
        ("depth=" + "9" * 5000, "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_explained(text, hint):
    with pytest.raises(ConfigError) as error:
        check_overrides([text])
    assert hint in str(error.value)


def test_what_only_looks_like_a_range_is_text():
    (parsed,) = check_overrides(["note='range(1,1000000000000)'"])
    assert parsed.value == "range(1,1000000000000)"


def test_arguments_that_are_no_text_are_refused():
    with pytest.raises(ConfigError, match="not UTF-8"):
        multirun.normalised(["results=/data/\udcff"])


@pytest.mark.parametrize(
    ("words", "plain"),
    [(["--cfg=job"], True), (["-c", "job"], True), (["-cd", "own"], False), (["-m"], False)],
)
def test_which_flags_only_print(words, plain):
    assert multirun.is_plain(words) is plain


def test_a_sweep_of_too_many_combinations_is_refused():
    with pytest.raises(ConfigError, match="1,000,000 combinations"):
        check_overrides([f"{key}=range(0,100)" for key in ("depth", "window", "sink")])


GRAMMAR = st.sampled_from(
    ["range(", "glob(", "choice(", "interval(", "sort(", "shuffle(", "tag(", "int(", "float(", "json_str(",
     "extend_list(", *"()[]{},:='\"\\@~+/*? \n.", "${", "a", "depth", "1", "-1", "1e9", "0.1", "nan", "inf",
     "null", "true", "key=", "\0", "\ud800"],
)  # fmt: skip


@settings(max_examples=300)
@given(st.sampled_from(["", "depth=", "model=", "~", "server.image="]), st.lists(GRAMMAR, max_size=10))
@example("depth=", ["range(1,5),2"])
@example("depth=", ["[" * 500])
def test_whatever_is_typed_is_read_or_refused(start, words):
    try:
        check_overrides([start + "".join(words)])
        multirun.split([start + "".join(words)])
    except ConfigError as error:
        assert str(error)


@pytest.mark.parametrize(
    "pair",
    [
        ("+a={x:1},{x:2}", "+a={y:10},{y:20}"),
        ("depth=3", "depth=5"),
        ("model=a", "+model=b"),
        ("++x=1", "x=2"),
    ],
)
def test_a_key_given_twice_is_refused(pair):
    with pytest.raises(ConfigError, match="given twice"):
        check_overrides(pair)
    assert len(check_overrides([pair[0], "other=1"])) == 2
