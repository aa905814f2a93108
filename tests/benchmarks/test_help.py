"""Every benchmark module says what it is when it is asked."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("[!_]*.py")))
def test_help_says_what_a_benchmark_does(name):
    words = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    done = subprocess.run(words, cwd=BENCHMARKS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    usage, _, description = done.stdout.partition("\n\n")
    assert usage.startswith("usage:") and description.strip()
    assert not done.stderr


def test_what_takes_minutes_says_what_it_is_at():
    words = [sys.executable, str(BENCHMARKS / "inputs.py"), "10"]  # too few tokens for any task
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "[1/15] niah_single" in done.stderr
    assert "[1/15]" not in done.stdout
