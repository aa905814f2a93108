"""The ring beside a target of Mamba2 layers: Nemotron-H with its MTP head, on SGLang's real engine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.engine.settings import EngineSettings
from tests.engine.ring.dense_model import random_prompt
from tests.engine.ring.engines import Arm, Outcome, Round, run
from tests.engine.ring.mamba2_model import ATTENTION_LAYERS, KEY_BYTES, write_mamba2_model

pytestmark = [pytest.mark.server, pytest.mark.timeout(1200)]

DEPTH, WINDOW, SINK = 5, 24, 4
SLOTS = SINK + WINDOW + DEPTH
NATIVE = EngineSettings(draft_tokens=DEPTH)
RING = EngineSettings("ring", WINDOW, SINK, DEPTH)

ROUNDS = [
    Round([random_prompt(130, 4)], [40]),
    Round([random_prompt(n, n) for n in (300, 10, 60, 33)], [50, 40, 30, 60]),
    # More requests than rows: rows are used again.
    Round([random_prompt(20 + 23 * i, 10 + i) for i in range(7)], [12 + 3 * i for i in range(7)]),
    Round([random_prompt(130, 4)], [40]),
]

SETTINGS: dict[str, EngineSettings | None] = {
    "dense": None,
    "native": NATIVE,
    "windowed": EngineSettings("windowed", WINDOW, SINK, DEPTH),
    "ring": RING,
    "unpruned": EngineSettings("ring", WINDOW, SINK, DEPTH, prune_prefill=False),
    "wide": EngineSettings("ring", 400, SINK, DEPTH),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mamba2_model(tmp_path_factory.mktemp("mamba2"))


@pytest.fixture(scope="module")
def outcome(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """Runs an arm of SETTINGS over ROUNDS, once."""

    @functools.cache
    def get(name: str) -> Outcome:
        arm = Arm(SETTINGS[name], model=model, engine={"chunked_prefill_size": 48})
        return run(arm, ROUNDS, tmp_path_factory.mktemp(name))

    return get


def test_the_ring_answers_as_dense_decoding_does(outcome: Callable[[str], Outcome]) -> None:
    ring = outcome("ring")
    assert "type=NemotronHForCausalLMMTP" in ring.log
    assert ring.values("ids") == outcome("dense").values("ids")
    assert ring.accept_length > 1.05


def test_a_used_row_drafts_as_a_fresh_one(outcome: Callable[[str], Outcome]) -> None:
    rounds = outcome("ring").rounds
    assert rounds[0][0]["histogram"] == rounds[-1][0]["histogram"]


def test_the_ring_pool_holds_what_was_computed(outcome: Callable[[str], Outcome]) -> None:
    """The draft's pool is a plain one of one layer; the target's holds the keys of its attention layers."""
    ring = outcome("ring")
    facts = ring.facts
    assert (facts["rows"], facts["slots_per_row"]) == ("4", str(SLOTS))
    assert ring.pool_tokens == [20_000, 4 * SLOTS]
    assert int(facts["draft_pool_bytes"]) == (4 * SLOTS + 1) * KEY_BYTES
    memory = 20_000 * ATTENTION_LAYERS * KEY_BYTES + int(facts["draft_pool_bytes"])
    assert int(facts["target_tokens_without_ring"]) == memory // ((ATTENTION_LAYERS + 1) * KEY_BYTES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["native", "windowed", "unpruned", "wide"])
def test_every_arm_answers_as_dense_decoding_does(outcome: Callable[[str], Outcome], name: str) -> None:
    assert outcome(name).values("ids") == outcome("dense").values("ids")


@pytest.mark.slow
def test_ring_and_window_accept_alike_and_a_wide_ring_as_the_native_draft(
    outcome: Callable[[str], Outcome],
) -> None:
    histograms = {name: outcome(name).values("histogram") for name in SETTINGS if name != "dense"}
    assert histograms["ring"] == histograms["windowed"] == histograms["unpruned"]
    assert histograms["wide"] == histograms["native"]
    assert outcome("native").accept_length > 1.8
    assert outcome("windowed").accept_length < outcome("native").accept_length - 0.4
    assert outcome("windowed").pool_tokens == [20_000, 20_000]


@pytest.mark.slow
def test_trees_of_width_three(model: Path, tmp_path: Path) -> None:
    """Mamba2's states follow the accepted branch."""
    rounds = [Round([random_prompt(n, n) for n in (130, 60, 333, 10)], [40, 30, 30, 40])]
    settings = {
        "dense": None,
        "native": EngineSettings(draft_tokens=8, topk=3),
        "windowed": EngineSettings("windowed", WINDOW, SINK, 8, topk=3),
        "ring": EngineSettings("ring", WINDOW, SINK, 8, topk=3),
    }
    outcomes = {}
    for name, value in settings.items():
        engine = {"chunked_prefill_size": 48} | ({"speculative_num_steps": 3} if value else {})
        outcomes[name] = run(Arm(value, model=model, engine=engine), rounds, tmp_path / name)
    for outcome in outcomes.values():
        assert outcome.values("ids") == outcomes["dense"].values("ids")
    assert outcomes["ring"].values("histogram") == outcomes["windowed"].values("histogram")
    assert outcomes["native"].accept_length > outcomes["ring"].accept_length


@pytest.mark.slow
def test_triton_interpreted_equals_the_cpu_backend(model: Path, tmp_path: Path) -> None:
    """Attention on Triton's kernels, of target and draft; the state space stays PyTorch's."""
    rounds = [Round([random_prompt(10, 1)], [12]), Round([random_prompt(n, n) for n in (130, 60)], [16, 12])]
    found = {
        backend: run(
            Arm(RING, backend=backend, model=model, engine={"chunked_prefill_size": 48}),
            rounds,
            tmp_path / backend,
            900,
        )
        for backend in ("intel_amx", "triton")
    }
    assert found["triton"].values("ids") == found["intel_amx"].values("ids")
    assert found["triton"].values("histogram") == found["intel_amx"].values("histogram")


@pytest.mark.slow
def test_the_freed_memory_goes_to_the_attention_layers(model: Path, tmp_path: Path) -> None:
    """Without a token cap: the states' pool is paid first, then the target gets the draft's share of keys."""
    engine = {"max_total_tokens": None, "mem_fraction_static": 0.08, "chunked_prefill_size": 64}
    rounds = [Round([random_prompt(20, 1)], [4])]
    outcomes = {
        name: run(Arm(settings, model=model, engine=engine), rounds, tmp_path / name)
        for name, settings in {"native": NATIVE, "ring": RING}.items()
    }
    ring, native = outcomes["ring"], outcomes["native"]
    facts = {name: int(value) for name, value in ring.facts.items() if value.isdigit()}
    assert facts["draft_pool_bytes"] == (4 * SLOTS + 1) * KEY_BYTES
    memory = facts["target_tokens"] * ATTENTION_LAYERS * KEY_BYTES + facts["draft_pool_bytes"]
    without = facts["target_tokens_without_ring"]
    assert without == memory // ((ATTENTION_LAYERS + 1) * KEY_BYTES)
    assert ring.pool_tokens == [facts["target_tokens"], 4 * SLOTS]
    assert facts["target_tokens"] / without == pytest.approx(1 + 1 / ATTENTION_LAYERS, rel=0.01)
    # How much memory was free differs between two starts, so that the two engines' sizes tell nothing.
    assert native.pool_tokens[0] == native.pool_tokens[1]
