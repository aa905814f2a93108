"""Numbers that no setting can have are refused when a configuration is composed."""

from __future__ import annotations

import pytest

from harness import config, ranges
from harness.compose import load
from harness.errors import ConfigError
from harness.sweep.cells import expand


def test_every_number_has_a_range():
    numbers = {name for name, hint in config.settings() if any(k in str(hint) for k in ("int", "float"))}
    lists_and_tables = {"input_params"}
    assert numbers - lists_and_tables == set(ranges.RANGES)


@pytest.mark.parametrize("name", sorted(ranges.RANGES))
def test_a_number_below_its_range_is_refused(name):
    with pytest.raises(ConfigError) as refused:
        load(["hardware=cpu", f"{name}=-3"])
    told, _, allowed = str(refused.value).partition(": give ")
    assert told in {f"{name}=-3", f"{name}=-3.0"} and allowed == str(ranges.RANGES[name])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("hardware.threads=0", "hardware.threads=0: give a number of at least 1"),
        ("server.chunked_prefill_tokens=0", "give a number of at least 1, or -1"),
        ("server.mem_fraction_static=1.5", "give a number between 0 and 1"),
        ("server.mem_fraction_static=0", "give a number between 0 and 1"),
        ("server.stall_limit_s=.nan", "server.stall_limit_s=nan: give a number above 0"),
        ("server.startup_timeout_s=.inf", "server.startup_timeout_s=inf: give"),
        (f"seed={2**63}", f"give a number of at least 0, at most {2**63 - 1}"),
        ("server.port=70000", "give a number from 1 to 65535"),
        ("repeats=1001", "repeats=1001: give a number from 1 to 1000"),
    ],
)
def test_what_is_refused_says_what_to_give(word, said):
    with pytest.raises(ConfigError, match=said):
        load(["hardware=cpu", word.replace(".nan", "nan").replace(".inf", "inf")])


def test_ends_of_ranges_and_one_chunk_are_taken():
    words = [
        "server.chunked_prefill_tokens=-1",
        "server.mem_fraction_static=0.99",
        "sink=0",
        "server.port=65535",
    ]
    assert load(["hardware=cpu", *words]).server.chunked_prefill_tokens == -1


def test_what_an_experiment_is_forced_to_is_in_range_too():
    with pytest.raises(ConfigError, match=r"experiment=smoke with .*: batch=-1: give a number of at least 1"):
        expand(load(["experiment=smoke", "hardware=cpu", "+force.batch=-1"]))
