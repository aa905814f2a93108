"""The ring's pool, and the memory it hands back to the target.

Natively target and draft pool hold the same N tokens, of t and d bytes each. With a ring the draft's pool is
R bytes, and the target's holds N' = (N * (t + d) - R) / t tokens: together they take what the native
pools take. With F target layers and one draft layer alike, N' is about N * (1 + 1 / F).

SGLang's profile finds N as M / (t + d) in a budget of M bytes, except where a checkpoint's config does not
name its draft layers (Qwen3.5): then it is M / t, and the native draft's pool comes on top of the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.engine.geometry import RingGeometry
from harness.errors import ConfigError


@dataclass(frozen=True)
class TokenCost:
    """Bytes of one token and of the ring; `charged` says whether SGLang's profile counts the draft's."""

    target_bytes: int
    draft_bytes: int
    ring_bytes: int
    charged: bool

    def target_budget(self, available_bytes: int) -> int:
        """Bytes for the target's tokens out of the profile's budget."""
        if not self.charged:
            available_bytes += available_bytes // self.target_bytes * self.draft_bytes
        return max(available_bytes - self.ring_bytes, 0)

    def native_tokens(self, target_tokens: int) -> int:
        """Tokens that two full-length pools hold in the memory of the target's pool and the ring."""
        memory = target_tokens * self.target_bytes + self.ring_bytes
        return memory // (self.target_bytes + self.draft_bytes)


def build_ring_pool(
    geometry: RingGeometry, original: Callable[..., Any], configurator: Any, arguments: dict[str, Any]
) -> Any:
    """Build the draft's pool with ring slots for every row instead of the target's token count.

    Args:
        original: `KVCacheConfigurator._build_token_to_kv_pool`, called with `configurator` and `arguments`.

    Raises:
        ConfigError: the draft's attention has no plain pool.
    """
    import msgspec  # comes with SGLang; token counts are asked for without

    if configurator.is_hybrid_swa or configurator.use_mla_backend:
        raise ConfigError("windowed-mtp mode=ring needs a draft with plain multi-head attention.")
    rows = arguments["req_to_token_pool"].req_to_token.shape[0] - 1
    slots = geometry.pool_slots(rows)
    arguments["sizes"] = msgspec.structs.replace(arguments["sizes"], max_total_num_tokens=slots)
    return original(configurator, **arguments)


def token_cost(
    geometry: RingGeometry, sizing: Any, configurator: Any, target_layers: int, rows: int
) -> TokenCost:
    """What target, draft and ring cost, before `sizing` is changed.

    Args:
        sizing: the target's `DefaultPoolConfigurator`, just constructed.
        target_layers: target layers whose keys its pool holds.
        rows: most requests at once.

    Raises:
        ConfigError: the draft's cost cannot be told.
    """
    target = int(sizing._compute_cell_size(configurator, target_layers))
    charged = int(sizing._cell_size) > target
    draft = int(sizing._cell_size) - target
    if not charged:
        draft = target * int(configurator.spec_aux_config.draft_kv_num_layers or 0) // max(target_layers, 1)
    if draft <= 0 or rows <= 0:
        raise ConfigError(
            f"windowed-mtp cannot size the ring for {rows} requests at {draft} bytes a slot: "
            "set --max-running-requests, or use mode=windowed."
        )
    return TokenCost(target, draft, draft * (geometry.pool_slots(rows) + 1), charged)
