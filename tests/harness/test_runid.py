"""Directories of runs never meet, however close in time the runs start."""

from __future__ import annotations

from datetime import UTC, datetime

import hydra
from hydra.core.global_hydra import GlobalHydra

from harness import config
from harness.sweep import runid

CONFIG = {"model": "tiny", "depth": 7}


class FrozenClock(datetime):
    """Every run starts at the same moment."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 30, 2, 38, 38, tzinfo=tz or UTC)


def directories(run_id, monkeypatch):
    """Hydra's directories of a single run and of a sweep, as the configuration names them."""
    monkeypatch.setenv("WMTP_RUN_ID", run_id)
    config.register()
    GlobalHydra.instance().clear()
    with hydra.initialize_config_module("conf", version_base="1.3"):
        composed = hydra.compose("config", overrides=["results=/tmp/r"], return_hydra_config=True)
        return composed.hydra.run.dir, composed.hydra.sweep.dir


def test_runs_of_one_second_have_their_own_directories(monkeypatch):
    monkeypatch.setattr(runid, "datetime", FrozenClock)
    names = [runid.new_run_id(CONFIG) for _ in range(50)]
    assert len(set(names)) == 50
    assert all(name.startswith(f"20261130-023838-{runid.config_hash(CONFIG)}-") for name in names)
    found = [directory for name in names[:2] for directory in directories(name, monkeypatch)]
    assert found == [f"/tmp/r/logs/{name}" for name in names[:2] for _ in ("run", "sweep")]


def test_hash_follows_values_and_not_order():
    assert runid.config_hash({"a": 1, "b": 2}) == runid.config_hash({"b": 2, "a": 1})
    assert runid.config_hash({"a": 1}) != runid.config_hash({"a": 2})
    assert runid.config_hash({"a": 1}) != runid.config_hash({"a": "1"})
