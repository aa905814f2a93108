from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import vocabularies
from generators.tokenizer import Tokenizer
from tests.generators.cases import DATA


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    """A byte-level BPE of 900 tokens that splits digits."""
    return Tokenizer.load(DATA / "small_bpe")


@pytest.fixture(scope="session")
def vocabulary(request: pytest.FixtureRequest):
    """Real vocabularies by name, converted once for each checkout."""
    loaded: dict[str, Tokenizer] = {}

    def load(name: str) -> Tokenizer:
        if name not in loaded:
            loaded[name] = Tokenizer.load(vocabulary_folder(request.config, name))
        return loaded[name]

    return load


def vocabulary_folder(config: pytest.Config, name: str) -> Path:
    try:
        return vocabularies.tokenizer_folder(name, Path(config.cache.mkdir("vocabularies")))
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
