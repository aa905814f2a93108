"""Coverage-guided fuzzing of one target: `python tests/fuzz/run.py TARGET FOLDER [libFuzzer option ...]`.

Needs `pip install atheris`. Inputs that lead to new code are kept in FOLDER.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["harness", "analysis", "generators"]):
    from tests.fuzz import targets

name, folder, *options = sys.argv[1:]
Path(folder).mkdir(parents=True, exist_ok=True)
for number, seed in enumerate(targets.seeds(name)):
    (Path(folder) / f"seed{number}").write_bytes(seed)
atheris.Setup([sys.argv[0], folder, *options], targets.TARGETS[name])
atheris.Fuzz()
