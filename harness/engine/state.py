"""What the plugin knows of one draft runner: the slots its forwards write and read.

No state outlives a forward. A ring slot follows from a row and a position alone, and with the radix cache off
(see `guards`) a request writes every position that it reads itself. So neither a finished, aborted or
retracted request nor an earlier occupant of a row can leave anything behind.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.engine.geometry import RingGeometry
from harness.engine.settings import EngineSettings
from harness.engine.tables import kept_positions, ring_slots


class DraftState:
    """Slots of one draft runner's forwards.

    Attributes:
        req_to_token: [rows + 1, positions] int32, the target's slots; row 0 pads batches.
        rows: requests the server can hold at once.
        may_prune: whether the prefill in flight may be pruned; the worker hook sets it for each one.
    """

    def __init__(self, settings: EngineSettings, req_to_token: Tensor, device: Any) -> None:
        self.settings = settings
        self.geometry = RingGeometry.of(settings)
        self.req_to_token = req_to_token
        self.device = device
        self.rows = req_to_token.shape[0] - 1
        self.is_ring = settings.mode == "ring"
        self.may_prune = False

    def slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Slots [...] int64 of `positions` in `rows` (broadcastable), in the draft's pool."""
        if self.is_ring:
            return ring_slots(self.geometry, rows, positions)
        positions = positions.clamp(0, self.req_to_token.shape[1] - 1)
        return self.req_to_token[rows.to(torch.int64), positions.to(torch.int64)].to(torch.int64)

    def remap_writes(self, forward_batch: Any) -> None:
        """Give a draft forward the ring slots it writes, in place of the target's.

        SGLang gives the draft the target's slots. Host shapes only: no device-to-host copy, so that the
        overlap schedule stays ahead of the GPU.
        """
        mode = forward_batch.forward_mode
        if not self.is_ring or mode.is_idle() or forward_batch.out_cache_loc is None:
            return
        rows = forward_batch.req_pool_indices
        if mode.is_decode():
            # Branch t of a tree writes its step s at seq_len + t * steps + s, as SGLang lays them out.
            columns = forward_batch.out_cache_loc.numel() // forward_batch.batch_size
            positions = forward_batch.seq_lens[:, None] + torch.arange(columns, device=self.device)
            forward_batch.out_cache_loc = self.slots(rows[:, None], positions).reshape(-1)
        elif mode.is_draft_extend_v2():
            columns = forward_batch.out_cache_loc.numel() // forward_batch.batch_size
            positions = forward_batch.positions.view(-1, columns)
            forward_batch.out_cache_loc = self.slots(rows[:, None], positions).reshape(-1)
        else:
            forward_batch.out_cache_loc = self._prefill_slots(forward_batch)

    def _prefill_slots(self, forward_batch: Any) -> Tensor:
        """Slots of a prompt chunk: positions that no later forward reads go to the dummy slot.

        A chunk longer than the ring would otherwise write some slots twice, in no defined order.
        """
        tokens = forward_batch.positions.shape[0]
        counts = forward_batch.extend_seq_lens
        rows = forward_batch.req_pool_indices.repeat_interleave(counts, output_size=tokens)
        ends = forward_batch.seq_lens.repeat_interleave(counts, output_size=tokens)
        positions = forward_batch.positions
        survives = (positions < self.geometry.sink_tokens) | (positions >= ends - self.geometry.window_tokens)
        return torch.where(survives, self.slots(rows, positions), 0)

    def read_table(
        self, rows: Tensor, committed: Tensor, recent_from: Tensor, tail_positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """A compact table on the host's own path (CPU); the GPU's is `kernels.fill_compact_table`.

        Args:
            rows, committed, recent_from: [requests] int64; see `RingGeometry.kept`.
            tail_positions: [requests, t] positions that follow the kept ones in each lane.

        Returns:
            [requests, columns] int32 slots, and how many kept positions lead each lane [requests] int64.
        """
        columns = self.geometry.row_slots
        positions, lengths = kept_positions(self.geometry, committed, recent_from, columns)
        if tail_positions is not None:
            tail = lengths[:, None] + torch.arange(tail_positions.shape[1], device=self.device)
            positions.scatter_(1, tail, tail_positions)
            ends = lengths + tail_positions.shape[1]
        else:
            ends = lengths
        used = torch.arange(columns, device=self.device) < ends[:, None]
        slots = self.slots(rows[:, None], torch.where(used, positions, 0))
        return slots.to(torch.int32), lengths
