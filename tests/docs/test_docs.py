"""What the documents say can be followed: links lead on, commands compose, generated pages are current."""

import re
import runpy
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from analysis.figures import FIGURES
from analysis.tables import TABLES
from harness.sweep import multirun

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_MENTION = re.compile(r"`((?:docs|conf|harness|analysis|generators|tests|benchmarks|results)/[\w./]*\w/?)`")
_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PLACEHOLDER = re.compile(r"\.\.\.|\b[A-Z]{3,}\b|/path/")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_named_paths_exist(page):
    text = page.read_text(encoding="utf-8")
    for target, _ in _LINK.findall(text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"
    for target in _MENTION.findall(text):
        assert (ROOT / target).exists() or target.startswith("results/"), f"{page}: {target}"


def test_generated_pages_are_current():
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
    stored = {path.name: path.read_text("utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")}
    assert stored == made, "run `python docs/generate.py`"


def commands():
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True) if line.count("'") % 2 == 0 else []
                if words:
                    yield page.name, line.strip(), words


HARNESS = [
    pytest.param(words[words.index("-m") + 2 :], id=f"{page}: {line[:60]}")
    for page, line, words in commands()
    if "-m" in words and words[words.index("-m") + 1] in ("harness", "harness.plan")
    if not _PLACEHOLDER.search(line.partition("#")[0]) and "|" not in line
]


def test_there_are_commands_to_check():
    assert len(HARNESS) >= 5


@pytest.mark.parametrize("words", HARNESS)
def test_commands_of_the_harness_compose(words, tmp_path):
    overrides = [w for w in words if not w.startswith("-") and not w.startswith(("hydra/", "hydra."))]
    if not any(word.startswith("hardware=") for word in overrides):
        overrides.append("hardware=cpu")
    overrides = [word for word in overrides if not word.startswith("results=")]
    assert multirun.plan_of(multirun.normalised([*overrides, f"results={tmp_path}"])).points


def test_make_targets_that_documents_name_exist():
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {name for names in re.findall(r"^([\w %-]+):", rules, re.M) for name in names.split()}
    patterns = [re.compile(target.replace("%", r"[\w-]+")) for target in targets]
    named = {t for _, _, words in commands() for w, t in pairwise(words) if w == "make"}
    assert "demo" in named
    assert [t for t in named if not any(p.fullmatch(t) for p in patterns)] == []


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_every_table_and_figure_can_be_reproduced():
    experiments = {path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml")}
    names = [f"table-{name}" for name in TABLES] + [f"figure-{name}" for name in FIGURES]
    told = subprocess.run(
        ["make", "-n", "-o", "pyproject.toml", *(f"reproduce-{name}" for name in names)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    measured = re.findall(r"-m harness experiment=(\S+)", told)
    assert len(measured) == len(names)
    assert [name for name in measured if name not in experiments] == []
