"""Tokens within a given memory, arm by arm."""

from __future__ import annotations

import pytest

from harness.engine.pools import TokenCost
from harness.engine.settings import EngineSettings
from harness.errors import ConfigError
from harness.models.architecture import Architecture
from harness.points import Arm, Point
from harness.server.budget import pool_tokens

QWEN = Architecture(40, 10, 2, 256, 1, 1, 262_144, "qwen3_5")
RING = EngineSettings("ring", 4032, 64, 7)
TOKEN = 2 * 2 * 256 * 2
"""Bytes of a token in one layer."""


def tokens(arm: Arm, mib: int = 4096, tp: int = 1) -> int:
    settings = RING if arm == "ring" else EngineSettings()
    return pool_tokens(mib, QWEN, "bfloat16", arm, settings, rows=4, tp=tp)


def test_every_arm_stays_within_the_budget_and_uses_it() -> None:
    ring_bytes = TOKEN * (4 * 4103 + 1)
    held = {
        "dense": (tokens("dense") + 1) * 10 * TOKEN,
        "native": (tokens("native") + 1) * 11 * TOKEN,
        "windowed": (tokens("windowed") + 1) * 11 * TOKEN,
        "ring": (tokens("ring") + 1) * 10 * TOKEN + ring_bytes,
    }
    for size in held.values():
        assert (4096 << 20) - 11 * TOKEN < size <= 4096 << 20


def test_the_ring_gets_what_the_plugin_gives_it() -> None:
    cost = TokenCost(10 * TOKEN, TOKEN, TOKEN * (4 * 4103 + 1), charged=True)
    assert tokens("ring") == cost.target_budget(4096 << 20) // cost.target_bytes - 1
    assert cost.native_tokens(tokens("ring")) == pytest.approx(tokens("native"), abs=2)


def test_two_gpus_share_the_heads() -> None:
    assert tokens("native", tp=2) == pytest.approx(2 * tokens("native"), abs=2)
    assert tokens("native", tp=4) == tokens("native", tp=2), "two heads cannot be split further"


def test_nothing_fits() -> None:
    with pytest.raises(ConfigError, match="kv_budget_mib=8 holds no token of arm=ring"):
        tokens("ring", mib=8)


def test_the_budget_tells_points_apart_and_leaves_older_keys_alone() -> None:
    point = Point(
        model="m", checkpoint="c", hardware="cpu", arm="dense", depth=1, context_tokens=9, task="t",
        draft_backend="-",
    )  # fmt: skip
    assert point.key == "a8b0253866d382cc"
    assert point.model_copy(update={"kv_budget_mib": 64}).key != point.key
