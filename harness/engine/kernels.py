"""The Triton kernel that fills compact read tables, and its launcher.

One launch per planned forward, fixed shapes, no host synchronisation: it runs ahead of a CUDA graph's replay
into buffers that the graph reads.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from harness.engine.geometry import RingGeometry

BLOCK = 1024


@triton.jit
def compact_table_kernel(  # type: ignore[no-untyped-def]
    rows,
    committed,
    recent_from,
    req_to_token,
    table,
    lengths,
    req_to_token_stride,
    table_stride,
    tail_tokens,
    SINK: tl.constexpr,
    PERIOD: tl.constexpr,
    ROW_SLOTS: tl.constexpr,
    RING: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Lane b of `table`: the slots of its kept positions, then of `tail_tokens` ones from committed[b] on.

    `lengths[b]` becomes the number of kept positions. Pointers: rows, committed, recent_from, lengths int64;
    req_to_token, table int32. PERIOD and ROW_SLOTS as in `RingGeometry`.
    """
    lane = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    row = tl.load(rows + lane).to(tl.int64)
    end = tl.load(committed + lane).to(tl.int64)
    sink_end = tl.minimum(end, SINK)
    recent = tl.minimum(tl.maximum(tl.load(recent_from + lane).to(tl.int64), sink_end), end)
    kept = sink_end + end - recent
    # Kept positions and tail are one run from `recent` on: the tail starts where the recent keys end.
    position = tl.where(column < sink_end, column, recent + column - sink_end)
    used = column < kept + tail_tokens
    if RING:
        wrapped = SINK + (position - SINK) % PERIOD
        offset = tl.where(position < SINK, position, wrapped)
        slot = tl.where(row > 0, 1 + (row - 1) * ROW_SLOTS + offset, 0)
    else:
        slot = tl.load(req_to_token + row * req_to_token_stride + position, mask=used, other=0).to(tl.int64)
    tl.store(table + lane * table_stride + column, slot.to(tl.int32), mask=used)
    if tl.program_id(1) == 0:
        tl.store(lengths + lane, kept)


def fill_compact_table(
    geometry: RingGeometry,
    rows: Tensor,
    committed: Tensor,
    recent_from: Tensor,
    req_to_token: Tensor,
    table: Tensor,
    lengths: Tensor,
    tail_tokens: int,
    ring: bool,
) -> None:
    """Fill `table` [lanes, columns] int32 and `lengths` [lanes] int64 for `committed.shape[0]` lanes.

    Args:
        rows, committed, recent_from: [lanes]; see `RingGeometry.kept`.
        req_to_token: [rows, positions] int32, read where `ring` is False.
        tail_tokens: positions after the committed ones that follow in each lane.
        ring: slots of the ring, or those that `req_to_token` names.
    """
    lanes = committed.shape[0]
    if lanes == 0:
        return
    block = min(triton.next_power_of_2(table.shape[1]), BLOCK)
    grid = (lanes, triton.cdiv(table.shape[1], block))
    launch: Any = compact_table_kernel[grid]
    launch(
        rows,
        committed,
        recent_from,
        req_to_token,
        table,
        lengths,
        req_to_token.stride(0),
        table.stride(0),
        tail_tokens,
        SINK=geometry.sink_tokens,
        PERIOD=geometry.period_slots,
        ROW_SLOTS=geometry.row_slots,
        RING=ring,
        BLOCK_COLUMNS=block,
    )
