"""Run directories never meet, however close in time runs start."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.sweep import rundir

CONFIG = {"model": "tiny", "depth": 7}


def test_runs_of_one_second_have_their_own_directories(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: rundir.create_run_dir(tmp_path, CONFIG), range(50)))
    assert len(set(made)) == 50
    assert all(rundir.config_hash(CONFIG) in directory.name for directory in made)


def test_an_existing_directory_is_never_taken(tmp_path, monkeypatch):
    names = iter(["same", "same", "same", "other"])
    monkeypatch.setattr(rundir, "new_run_id", lambda config: next(names))
    assert rundir.create_run_dir(tmp_path, CONFIG).name == "same"
    assert rundir.create_run_dir(tmp_path, CONFIG).name == "other"
    monkeypatch.setattr(rundir, "new_run_id", lambda config: "same")
    with pytest.raises(ConfigError, match="taken"):
        rundir.create_run_dir(tmp_path, CONFIG)


def test_hash_follows_values_and_not_order():
    assert rundir.config_hash({"a": 1, "b": 2}) == rundir.config_hash({"b": 2, "a": 1})
    assert rundir.config_hash({"a": 1}) != rundir.config_hash({"a": 2})
    assert rundir.config_hash({"a": 1}) != rundir.config_hash({"a": "1"})


def test_a_directory_is_claimed_again_by_the_same_configuration_only(tmp_path):
    directory = rundir.claim_run_dir(tmp_path / "run", CONFIG)
    assert rundir.claim_run_dir(directory, CONFIG) == directory
    with pytest.raises(ConfigError, match="never merged"):
        rundir.claim_run_dir(directory, {**CONFIG, "depth": 5})


def test_foreign_and_damaged_directories_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="no known run"):
        rundir.claim_run_dir(tmp_path, CONFIG)
    (tmp_path / rundir.IDENTITY_FILE).write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        rundir.claim_run_dir(tmp_path, CONFIG)


def test_an_unwritable_parent(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make"):
        rundir.create_run_dir(tmp_path / "file", CONFIG)
    with pytest.raises(ConfigError, match="cannot use"):
        rundir.claim_run_dir(tmp_path / "file", CONFIG)


def claim(arguments: tuple[Path, int]) -> bool:
    directory, depth = arguments
    try:
        rundir.claim_run_dir(directory, {"depth": depth})
    except ConfigError:
        return False
    return True


def test_of_two_configurations_one_wins(tmp_path):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        for trial in range(10):
            won = list(pool.map(claim, [(tmp_path / str(trial), 3), (tmp_path / str(trial), 5)]))
            assert sorted(won) == [False, True]
