"""Probe settings survive the environment, and nonsense is refused by name."""

import pytest

from harness.engine.probes.settings import VARIABLE, ProbeSettings, file_name, from_environment
from harness.errors import ConfigError


def test_settings_survive_the_environment(tmp_path):
    settings = ProbeSettings("decision", str(tmp_path), ((252, 4), (60, 0)), max_steps=9, nvtx=True)
    assert from_environment(settings.environment()) == settings
    assert settings.path(1) == tmp_path / file_name("decision", 1)


def test_off_by_default_and_an_inherited_probe_is_overridden(tmp_path):
    assert not from_environment({}).active
    inherited = ProbeSettings("trace", str(tmp_path)).environment()
    assert not from_environment(inherited | ProbeSettings().environment()).active


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"kind": "tracing"}, "unknown"),
        ({"kind": "trace"}, "absolute directory"),
        ({"kind": "trace", "directory": "results/x"}, "absolute directory"),
        ({"kind": "decision", "directory": "/tmp"}, "at least one window"),
        ({"kind": "decision", "directory": "/tmp", "windows": ((0, 4),)}, "windows"),
        ({"kind": "decision", "directory": "/tmp", "windows": ((8, 4, 1),)}, "windows"),
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": True}, "max_steps"),
        ({"warm_steps": -1}, "warm_steps"),
        ({"nvtx": 1}, "nvtx"),
    ],
)
def test_nonsense_is_refused(values, complaint):
    with pytest.raises(ConfigError, match=complaint):
        ProbeSettings(**values)


@pytest.mark.parametrize("text", ["{", "[1]", '{"kinds": "trace"}', '{"windows": [4, 5]}'])
def test_a_variable_that_the_launcher_did_not_write_is_refused(text):
    with pytest.raises(ConfigError, match=VARIABLE):
        from_environment({VARIABLE: text})
