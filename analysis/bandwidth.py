"""How far the measured draft is from the least time its KV reads can take.

floor = bytes/token x S x gamma / memory bandwidth: every draft forward reads the draft's KV once, of the
whole context (native) or of sink + window (windowed).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.models.architecture import ELEMENT_BYTES, kv_bytes_per_token
from harness.points import Point
from harness.records import Record

# Peak memory bandwidth by the vendors' data sheets, GB/s; first match of the lower-case name wins.
PEAK_GB_PER_S = {"b200": 8000.0, "h200": 4800.0, "h100": 3350.0, "a100": 2039.0}

_LARGE_POOL_BYTES = 1 << 30
_SHAPE = ("mtp_attention_layers", "kv_heads", "head_dim")


@dataclass(frozen=True)
class Floor:
    """Bytes one draft forward reads, and the least time of a step's draft forwards."""

    bytes_per_token: float
    tokens_read: int
    gamma: int
    bandwidth_gb_per_s: float

    @property
    def read_ms(self) -> float:
        """One forward's read."""
        return self.bytes_per_token * self.tokens_read / (self.bandwidth_gb_per_s * 1e9) * 1e3

    @property
    def step_ms(self) -> float:
        """All gamma forwards of a step."""
        return self.read_ms * self.gamma


def peak_bandwidth(hardware: str) -> float | None:
    """GB/s of a named GPU, None for others (a CPU has no one number worth quoting)."""
    return next((value for name, value in PEAK_GB_PER_S.items() if name in hardware.lower()), None)


def draft_bytes_per_token(record: Record) -> float | None:
    """Bytes of one token in one GPU's draft pool; None where they are unknown or rounded away.

    Of the pool as the plugin states it exactly, else as the server's log does, which rounds to 0.01 GiB: a
    smaller pool's share of a token comes from the architecture.
    """
    exact = record.server.engine_report.get("draft_pool_bytes", "").isdecimal()
    for pool in record.server.pools:
        if pool.role == "draft" and pool.bytes and pool.tokens and (exact or pool.bytes >= _LARGE_POOL_BYTES):
            return pool.bytes / pool.tokens
    found = [record.server.architecture.get(name) for name in _SHAPE]
    shape = [size for size in found if isinstance(size, int) and size > 0]
    if record.point.kv_dtype not in ELEMENT_BYTES or len(shape) < len(_SHAPE):
        return None
    layers, heads, head_dim = shape
    # A GPU holds one head at least.
    own_heads = max(1, heads // record.point.tp)
    return float(kv_bytes_per_token(layers, own_heads, head_dim, record.point.kv_dtype))


def tokens_read(point: Point) -> int:
    """Keys one draft forward reads per sequence."""
    if point.window_tokens is None:
        return point.context_tokens
    return min(point.context_tokens, point.window_tokens + (point.sink_tokens or 0))


def floor_of(record: Record, bandwidth_gb_per_s: float | None = None) -> Floor | None:
    """The floor of a record, or None where bytes or bandwidth are unknown."""
    point = record.point
    per_token = draft_bytes_per_token(record)
    bandwidth = bandwidth_gb_per_s or peak_bandwidth(point.hardware)
    if per_token is None or bandwidth is None or point.arm == "dense":
        return None
    return Floor(per_token * point.batch, tokens_read(point), point.gamma, bandwidth)
