import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.points import Point, make_point

BASE = {
    "model": "tiny",
    "checkpoint": "c0ffee",
    "hardware": "cpu",
    "arm": "ring",
    "depth": 7,
    "window_tokens": 252,
    "sink_tokens": 4,
    "context_tokens": 8192,
    "task": "niah_multiquery_enum",
    "draft_backend": "intel_amx",
}


def test_key_is_the_content_and_nothing_else():
    one, other = make_point(BASE), make_point(dict(reversed(list(BASE.items()))))
    assert one.key == other.key
    assert len(one.key) == 16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("depth", 5),
        ("window_tokens", 508),
        ("seed", 1),
        ("repeat", 1),
        ("tp", 2),
        ("task_params", {"keys": 9}),
    ],
)
def test_every_defining_field_changes_the_key(field, value):
    assert make_point(BASE).key != make_point({**BASE, field: value}).key


def test_task_parameters_are_unordered():
    a = make_point({**BASE, "task_params": {"keys": 4, "values": 1}})
    b = make_point({**BASE, "task_params": {"values": 1, "keys": 4}})
    assert a.key == b.key


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"window_tokens": None}, "needs window_tokens"),
        ({"arm": "native"}, "leave window_tokens out"),
        ({"window_tokens": 6}, "smaller than depth"),
        ({"sink_tokens": 253}, "sink_tokens=253"),
        ({"sink_tokens": -1}, "sink_tokens=-1"),
        ({"depth": 1}, "depth >= 2"),
        ({"arm": "dense", "window_tokens": None, "sink_tokens": None}, "depth must be 1"),
        ({"arm": "fast"}, "arm"),
        ({"batch": 0}, "batch"),
        ({"context_tokens": 10**30}, "cannot be stored"),
        ({"task_params": {"keys": 10**30}}, "cannot be stored"),
        ({"seed": -1}, "seed"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty"),
        ({"model": ""}, "is no name"),
        ({"model": "=cmd()"}, "is no name"),
        ({"hardware": "a\nb"}, "is no name"),
        ({"task": "<script>"}, "is no name"),
        ({"dtype": "x\x1b[31m"}, "is no name"),
        ({"context_tokens": 0}, "context_tokens"),
        ({"widnow": 3}, "widnow"),
        ({"seed": 10**20}, "cannot be stored"),
        ({"task_params": {"path": "\udcff"}}, "cannot be stored"),
    ],
)
def test_senseless_points_are_refused_by_name(changes, words):
    with pytest.raises(ConfigError, match=words):
        make_point({**BASE, **changes})


@given(st.integers(2, 64), st.integers(64, 100_000), st.integers(0, 64))
def test_gamma_is_one_less_than_depth(depth, window, sink):
    point = make_point({**BASE, "depth": depth, "window_tokens": window, "sink_tokens": sink})
    assert point.gamma == depth - 1
    assert Point.model_validate_json(point.model_dump_json()).key == point.key


def test_a_name_too_long_for_a_file_is_a_sentence():
    with pytest.raises(ConfigError, match="has 300 characters"):
        make_point({**BASE, "model": "m" * 300})
