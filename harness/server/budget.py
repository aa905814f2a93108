"""How many tokens an arm's KV pools hold in a given memory, so that every arm gets the same.

Target and draft pool of a native draft hold the same N tokens of t and d bytes: N = M / (t + d). Without a
draft N = M / t. A ring takes R bytes for all its rows, whatever the context: N = (M - R) / t. This is what
SGLang's profile and the plugin do with a GPU's memory (`harness.engine.pools`); here M is given, for machines
where free memory is no measure (a CPU's changes with every other program).
"""

from __future__ import annotations

from harness.engine.geometry import RingGeometry
from harness.engine.settings import EngineSettings
from harness.errors import ConfigError
from harness.models.architecture import Architecture
from harness.points import Arm


def pool_tokens(
    budget_mib: int,
    architecture: Architecture,
    kv_dtype: str,
    arm: Arm,
    settings: EngineSettings,
    rows: int,
    tp: int = 1,
) -> int:
    """The target's tokens on each GPU within `budget_mib` MiB for both KV pools.

    Args:
        settings: what the plugin is told, for the ring's geometry.
        rows: most requests at once; a ring has slots for each.
        tp: GPUs that share the KV heads.

    Raises:
        ConfigError: nothing fits.
    """
    shared_by = max(1, min(tp, architecture.kv_heads))
    target = architecture.target_kv_bytes_per_token(kv_dtype) // shared_by
    draft = 0 if arm == "dense" else architecture.draft_kv_bytes_per_token(kv_dtype) // shared_by
    memory = budget_mib << 20
    if arm == "ring":
        # One slot more: the pool's dummy.
        memory -= draft * (RingGeometry.of(settings).pool_slots(rows) + 1)
        draft = 0
    tokens = memory // (target + draft) - 1 if target else 0
    if tokens < 1:
        raise ConfigError(
            f"kv_budget_mib={budget_mib} holds no token of arm={arm} with {rows} requests at once: raise it"
        )
    return tokens
