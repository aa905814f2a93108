"""Rules of the code that no linter here knows: nothing unpickles or runs text, and who may import what."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [
    path
    for folder in ("harness", "analysis", "generators", "conf", "benchmarks", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
FORBIDDEN = {
    "eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "tempfile.mktemp",
    "pickle.load", "pickle.loads", "pickle.Unpickler", "pd.read_pickle", "pandas.read_pickle", "torch.load",
    "joblib.load", "dill.load", "dill.loads", "marshal.load", "marshal.loads", "shelve.open",
    "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load",
}  # fmt: skip


def broken_rules(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from (f"line {node.lineno}: {name}" for name in names & FORBIDDEN)
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if name in FORBIDDEN and not (name == "torch.load" and words.get("weights_only") == "True"):
            yield f"line {node.lineno}: {name}"
        if words.get("shell", "False") != "False" or words.get("allow_pickle", "False") != "False":
            yield f"line {node.lineno}: {name} with shell or allow_pickle"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_unpickles_or_runs_text(path: Path) -> None:
    assert list(broken_rules(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    ["eval('1')", "import pickle\npickle.load(f)", "run('ls', shell=True)", "from pickle import loads",
     "np.load(f, allow_pickle=True)", "torch.load(f)"],
)  # fmt: skip
def test_the_rule_sees_what_it_forbids(text: str) -> None:
    assert list(broken_rules(text))


# What is imported is read off a fresh interpreter in which these packages do not exist.
WITHOUT = """
import importlib, pkgutil, sys
sys.modules |= dict.fromkeys(sys.argv[2].split())
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@pytest.mark.parametrize(
    "package", ["analysis", "generators", "harness.sweep", "harness.server", "harness.measure"]
)
def test_records_are_read_and_runs_planned_without_sglang_or_torch(package: str) -> None:
    absent = "sglang torch triton transformers sgl_kernel"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, absent],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_wheel_holds_every_file_of_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    found = {
        path
        for name in ("analysis", "conf", "generators", "harness")
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".py"
    }
    assert {path for path in found if not any(path.match(pattern) for pattern in patterns)} == set()
    assert {path.parent.name for path in found if path.name == "py.typed"} == {
        "analysis",
        "generators",
        "harness",
    }
