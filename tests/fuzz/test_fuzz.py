"""Anything is refused in a sentence or read soundly: by hypothesis, and guided by coverage when slow."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .targets import TARGETS, seeds

SECONDS = 60


@pytest.mark.parametrize("name", TARGETS)
def test_sound_inputs_cut_and_mixed(name):
    sound = seeds(name)
    pieces = st.sampled_from(sound).flatmap(
        lambda text: st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(
            lambda ends: text[min(ends) : max(ends)]
        )
    )

    @settings(max_examples=20, deadline=None)
    @given(st.lists(pieces | st.binary(max_size=12), max_size=4).map(b"".join))
    def feed(data):
        TARGETS[name](data)

    for whole in sound:
        TARGETS[name](whole)
    feed()


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_coverage_guided(name, tmp_path):
    pytest.importorskip("atheris", reason="needs atheris: pip install atheris")
    done = subprocess.run(
        [
            sys.executable, Path(__file__).with_name("run.py"), name, tmp_path / "found",
            f"-max_total_time={SECONDS}", "-timeout=20", f"-artifact_prefix={tmp_path}/",
        ],
        check=False, capture_output=True, text=True, errors="replace", timeout=SECONDS + 120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
