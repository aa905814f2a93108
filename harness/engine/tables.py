"""The geometry on tensors: slots of many positions, and the compact tables a draft forward reads through.

A compact table is an id table of its own, [requests, columns] int32: lane b lists the slots of just those
positions that request b's forward may read. Shown to SGLang's backends instead of `req_to_token`, with the
lengths cut to match, it makes every request look short; no attention kernel changes. Positions that enter the
rotary embedding, and slots that are written, stay those of the real batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.geometry import RingGeometry


def ring_slots(geometry: RingGeometry, rows: Tensor, positions: Tensor) -> Tensor:
    """Slots [...] int64 of `positions` [...] in `rows` (broadcastable); see `RingGeometry.slot`."""
    positions = positions.to(torch.int64)
    rows = rows.to(torch.int64)
    past_sink = positions - geometry.sink_tokens
    wrapped = geometry.sink_tokens + torch.remainder(past_sink, geometry.period_slots)
    offset = torch.where(past_sink < 0, positions, wrapped)
    return torch.where(rows > 0, 1 + (rows - 1) * geometry.row_slots + offset, 0)


def kept_positions(
    geometry: RingGeometry, committed: Tensor, recent_from: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Positions that forwards read of their committed ones; see `RingGeometry.kept`.

    Args:
        committed, recent_from: [requests] int64.
        width: columns of the result, at least the longest lane.

    Returns:
        [requests, width] positions, valid in the first `lengths[b]` columns, and the lengths [requests].
    """
    sink_end = committed.clamp(max=geometry.sink_tokens)
    recent = torch.minimum(torch.maximum(recent_from, sink_end), committed)
    lengths = sink_end + committed - recent
    column = torch.arange(width, device=committed.device)[None]
    positions = torch.where(column < sink_end[:, None], column, recent[:, None] + column - sink_end[:, None])
    return positions, lengths
