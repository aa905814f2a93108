"""The memory that a ring hands back, by its formula."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness.engine.geometry import RingGeometry
from harness.engine.pools import TokenCost, token_cost
from harness.errors import ConfigError

GEOMETRY = RingGeometry(64, 4032, 7)


def sizing(charged: bool, layers: int, layer_bytes: int = 2048) -> tuple[SimpleNamespace, SimpleNamespace]:
    """SGLang's sizing object and configurator for `layers` target layers and one draft layer."""
    cell = layer_bytes * (layers + charged)
    configurator = SimpleNamespace(spec_aux_config=SimpleNamespace(draft_kv_num_layers=1))
    return SimpleNamespace(_cell_size=cell, _compute_cell_size=lambda kvc, n: n * layer_bytes), configurator


@pytest.mark.parametrize("charged", [True, False])
@pytest.mark.parametrize("layers", [8, 10, 12])
def test_the_targets_tokens_grow_by_the_drafts_share(layers: int, charged: bool) -> None:
    cost = token_cost(GEOMETRY, *sizing(charged, layers), layers, rows=4)
    memory = 60 * 2**30
    native = memory // (2048 * (layers + charged))
    tokens = cost.target_budget(memory) // cost.target_bytes
    # Less the four rings, which are 4 * 4103 + 1 draft slots.
    assert tokens == pytest.approx(native * (1 + 1 / layers) - (4 * 4103 + 1) / layers, abs=2)
    assert cost.native_tokens(tokens) == pytest.approx(native, abs=2)


def test_both_pools_together_take_what_the_native_ones_take() -> None:
    cost = TokenCost(target_bytes=20480, draft_bytes=2048, ring_bytes=2048 * 16413, charged=True)
    tokens = cost.target_budget(10**10) // cost.target_bytes
    assert 10**10 - cost.target_bytes < tokens * cost.target_bytes + cost.ring_bytes <= 10**10


def test_a_ring_larger_than_the_budget_leaves_nothing() -> None:
    assert TokenCost(100, 10, 10**6, True).target_budget(10**5) == 0


def test_a_draft_of_unknown_cost_is_refused() -> None:
    size, configurator = sizing(False, 8)
    configurator.spec_aux_config.draft_kv_num_layers = None
    with pytest.raises(ConfigError, match="cannot size the ring"):
        token_cost(GEOMETRY, size, configurator, 8, rows=4)
    with pytest.raises(ConfigError, match="--max-running-requests"):
        token_cost(GEOMETRY, *sizing(True, 8), 8, rows=0)
