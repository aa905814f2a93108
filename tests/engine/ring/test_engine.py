"""Dense, native, windowed and ring decoding on SGLang's real scheduler, cache and workers, on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.engine.settings import EngineSettings
from tests.engine.ring.engines import Arm, Outcome, Round, prompt, refusal, run

pytestmark = pytest.mark.server

DEPTH, WINDOW, SINK = 7, 24, 4
WIDE = 600
"""A window that holds every context of these rounds."""

ROUNDS = [
    Round([prompt(400, 4)], [40]),
    Round([prompt(10, 1)], [30]),
    Round([prompt(33, 2), prompt(150, 3), prompt(400, 4), prompt(90, 5)], [40, 30, 50, 20]),
    # More requests than rows: rows are used again.
    Round([prompt(20 + 31 * i, 10 + i) for i in range(9)], [12 + 3 * i for i in range(9)]),
    Round([prompt(400, 4)], [40]),
]

SETTINGS: dict[str, EngineSettings | None] = {
    "dense": None,
    "native": EngineSettings(draft_tokens=DEPTH),
    "windowed": EngineSettings("windowed", WINDOW, SINK, DEPTH),
    "ring": EngineSettings("ring", WINDOW, SINK, DEPTH),
    "wide": EngineSettings("ring", WIDE, SINK, DEPTH),
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """Runs an arm of SETTINGS over ROUNDS, once."""

    @functools.cache
    def get(name: str) -> Outcome:
        arm = Arm(SETTINGS[name], engine={"chunked_prefill_size": 128})
        return run(arm, ROUNDS, tmp_path_factory.mktemp(name))

    return get


@pytest.mark.parametrize("name", ["native", "windowed", "ring", "wide"])
def test_outputs_equal_dense_decoding(outcome: Callable[[str], Outcome], name: str) -> None:
    assert outcome(name).values("ids") == outcome("dense").values("ids")


def test_ring_and_window_accept_alike(outcome: Callable[[str], Outcome]) -> None:
    assert outcome("ring").values("histogram") == outcome("windowed").values("histogram")


def test_a_window_that_holds_the_context_is_native(outcome: Callable[[str], Outcome]) -> None:
    assert outcome("wide").values("histogram") == outcome("native").values("histogram")


def test_a_short_window_is_not_native(outcome: Callable[[str], Outcome]) -> None:
    """Else the window would not be in the draft's reads at all, and the equalities above would be empty."""
    assert outcome("windowed").values("histogram") != outcome("native").values("histogram")


@pytest.mark.parametrize("name", ["windowed", "ring"])
def test_a_used_row_drafts_as_a_fresh_one(outcome: Callable[[str], Outcome], name: str) -> None:
    rounds = outcome(name).rounds
    assert rounds[0][0]["histogram"] == rounds[-1][0]["histogram"]


def test_the_ring_pool_holds_what_was_computed(outcome: Callable[[str], Outcome]) -> None:
    ring, windowed = outcome("ring"), outcome("windowed")
    facts = ring.facts
    slots = SINK + WINDOW + DEPTH
    assert facts["mode"] == "ring"
    assert (facts["rows"], facts["slots_per_row"]) == ("4", str(slots))
    assert ring.pool_tokens == [20_000, 4 * slots]
    assert windowed.pool_tokens == [20_000, 20_000]
    per_slot = int(windowed.facts["draft_pool_bytes"]) / 20_001
    assert int(facts["draft_pool_bytes"]) == (4 * slots + 1) * per_slot


def test_the_plugin_says_nothing_when_off(outcome: Callable[[str], Outcome]) -> None:
    assert "windowed-mtp" not in outcome("native").log


def test_a_server_that_cannot_be_windowed_says_so_and_ends(tmp_path: Path) -> None:
    arm = Arm(
        EngineSettings("ring", WINDOW, SINK, DEPTH),
        engine={
            "disable_radix_cache": False,
            "speculative_draft_sink_size": 8,
            "enable_streaming_session": True,
        },
    )
    log = refusal(arm, tmp_path)
    assert "windowed-mtp mode=ring cannot start" in log
    assert "add --disable-radix-cache" in log
    assert "--speculative-draft-sink-size is 8 but the engine settings say 4" in log
    assert "--enable-streaming-session is not supported" in log
