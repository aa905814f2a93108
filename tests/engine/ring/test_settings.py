"""Settings: what makes sense, and their way through the environment."""

from __future__ import annotations

from typing import Any

import pytest

from harness.engine.settings import VARIABLE, EngineSettings, from_environment
from harness.errors import ConfigError

RING: dict[str, Any] = {"mode": "ring", "window_tokens": 64, "sink_tokens": 4, "draft_tokens": 7}


def test_off_by_default_and_without_the_variable() -> None:
    assert not EngineSettings().active
    assert from_environment({}) == EngineSettings()
    assert EngineSettings().server_arguments() == []


def test_environment_round_trip() -> None:
    settings = EngineSettings(**RING, prune_prefill=False, topk=2)
    assert from_environment(settings.environment()) == settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "sliding"}, "not one of"),
        ({"window_tokens": 0}, "window_tokens > 0"),
        ({"window_tokens": -5}, "window_tokens > 0"),
        ({"sink_tokens": -1}, "must not be negative"),
        ({"window_tokens": 6}, "smaller than the 7"),
        ({"window_tokens": 20, "topk": 3}, "smaller than the 21"),
        ({"draft_tokens": 1}, "draft_tokens >= 2"),
        ({"topk": 0}, "at least 1"),
        ({"window_tokens": 64.0}, "whole number"),
        ({"sink_tokens": True}, "whole number"),
        ({"prune_prefill": 1}, "true or false"),
        ({"window_extend": False}, "no longer holds"),
        ({"mode": "windowed", "window_extend": False}, "prune_prefill needs window_extend"),
    ],
)
def test_nonsense_is_refused_with_its_reason(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineSettings(**(RING | change))


@pytest.mark.parametrize("text", ["{", "[]", '"ring"', '{"mode": "ring", "window": 64}', '{"mode": "ring"}'])
def test_a_damaged_variable_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        from_environment({VARIABLE: text})


def test_server_arguments_agree_with_the_settings() -> None:
    arguments = EngineSettings(**RING).server_arguments("triton")
    pairs = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert pairs["--speculative-num-steps"] == "6"
    assert pairs["--speculative-num-draft-tokens"] == "7"
    assert pairs["--speculative-draft-window-size"] == "64"
    assert pairs["--speculative-draft-sink-size"] == "4"
    assert pairs["--speculative-draft-attention-backend"] == "triton"
    assert "--speculative-draft-window-size" not in EngineSettings(draft_tokens=7).server_arguments()
