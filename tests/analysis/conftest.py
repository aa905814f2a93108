"""One small study for all analysis tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from factory import small_study

from harness.records import Record, write_record


@pytest.fixture(scope="session")
def records() -> list[Record]:
    return small_study()


@pytest.fixture(scope="session")
def results(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    for record in records:
        write_record(folder, record)
    return folder
