"""Same seed, task, length and tokenizer: same bytes, whatever runs them."""

from __future__ import annotations

import json
import os
import shutil
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


NEEDED = ("hydra-core", "jinja2", "numpy", "orjson", "rich", "tokenizers")


def _newer_interpreters() -> list[Path]:
    """Interpreters of this machine that are newer than this one, the newest first."""
    found = {}
    for minor in range(sys.version_info.minor + 1, sys.version_info.minor + 5):
        pyenv = (Path.home() / ".pyenv/versions").glob(f"3.{minor}.*/bin/python")
        for place in (shutil.which(f"python3.{minor}"), *pyenv):
            if place and subprocess.run([place, "-c", "import venv"], check=False).returncode == 0:
                found[minor] = Path(place)
    return [found[minor] for minor in sorted(found, reverse=True)]


@pytest.fixture(scope="module")
def other_python(request) -> str:
    """A newer interpreter with what the generators need: OTHER_PYTHON, or one in an environment made here."""
    if "OTHER_PYTHON" in os.environ:
        return os.environ["OTHER_PYTHON"]
    reason = "there is no newer Python here, and OTHER_PYTHON names none"
    for interpreter in _newer_interpreters():
        place = Path(request.config.cache.mkdir("pythons")) / interpreter.resolve().name
        python, done = place / "bin/python", place / "done"
        if done.is_file():
            return str(python)
        install = [str(python), "-m", "pip", "install", "--quiet", *NEEDED]
        for command in ([str(interpreter), "-m", "venv", "--clear", str(place)], install):
            made = subprocess.run(command, check=False, capture_output=True, text=True)
            if made.returncode:
                reason = f"{command[0]}: {made.stderr.strip()[-200:]}"
                break
        else:
            done.touch()
            return str(python)
    pytest.skip(reason)


@pytest.mark.slow
def test_golden_manifest_under_another_python(other_python):
    version = [other_python, "-c", "import sys; print(sys.version_info[:2])"]
    assert (
        subprocess.run(version, check=True, capture_output=True, text=True).stdout
        != f"{sys.version_info[:2]}\n"
    )
    assert _built_by(other_python, PYTHONHASHSEED="7") == GOLDEN.read_bytes()
