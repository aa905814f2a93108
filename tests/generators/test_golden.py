"""Same seed, task, length and tokenizer: same bytes, whatever runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from generators.tasks import TASKS as ALL_TASKS
from tests.generators.cases import DATA, GOLDEN, TASKS, build_all


def test_every_task_is_pinned():
    assert {task for task, _ in TASKS} == set(ALL_TASKS)


def test_golden_manifest(monkeypatch):
    monkeypatch.chdir(DATA)
    built = json.loads(json.dumps(build_all()))
    pinned = json.loads(GOLDEN.read_text("utf-8"))
    for got, wanted in zip(built, pinned, strict=True):
        assert got == wanted, f"{wanted['task']} {wanted['params']} at {wanted['context_tokens']}"


def _built_by(python: str, **environment: str) -> bytes:
    keep = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LD_LIBRARY_PATH"}}
    command = [python, "-m", "tests.generators.cases"]
    root = Path(__file__).parents[2]
    return subprocess.run(
        command, cwd=root, env={**keep, **environment}, check=True, capture_output=True
    ).stdout


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "Asia/Tokyo"},
        {"PYTHONHASHSEED": "4242", "LC_ALL": "tr_TR.UTF-8", "PYTHONUTF8": "0", "RAYON_NUM_THREADS": "1"},
    ],
)
def test_golden_manifest_under_other_hash_seeds_and_locales(environment):
    assert _built_by(sys.executable, **environment) == GOLDEN.read_bytes()


@pytest.mark.skipif("OTHER_PYTHON" not in os.environ, reason="OTHER_PYTHON names no second interpreter")
def test_golden_manifest_under_another_python():
    assert _built_by(os.environ["OTHER_PYTHON"], PYTHONHASHSEED="7") == GOLDEN.read_bytes()
