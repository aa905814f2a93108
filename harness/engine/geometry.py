"""Which positions a windowed draft reads, and where a ring keeps them: plain arithmetic, no tensors.

A request in row r (1, 2, ...; row 0 pads batches) owns n_sink + W + d*k slots of the draft's KV pool:

    slot(r, p) = 1 + (r - 1) * (n_sink + W + d*k) + (p if p < n_sink else n_sink + (p - n_sink) mod (W + d*k))

with window W, n_sink sink positions, d draft tokens a step and tree width k. Slot 0 is the pool's dummy;
row 0 maps onto it. The period W + d*k is tight: a step reads W committed keys while it writes up to d*k past
them. After the ring buffer of Windowed-MTP (arXiv:2607.21535, section 6 and appendix A).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.engine.settings import EngineSettings


@dataclass(frozen=True)
class RingGeometry:
    """Sizes of one row, in slots (one slot holds one position's keys and values of every draft layer)."""

    sink_tokens: int
    window_tokens: int
    step_tokens: int
    """d*k: the most positions past the committed ones that one step writes."""

    @classmethod
    def of(cls, settings: EngineSettings) -> RingGeometry:
        """The geometry of active settings."""
        return cls(settings.sink_tokens, settings.window_tokens, settings.draft_tokens * settings.topk)

    @property
    def period_slots(self) -> int:
        """Slots that positions past the sink share, W + d*k."""
        return self.window_tokens + self.step_tokens

    @property
    def row_slots(self) -> int:
        """Slots of one request, n_sink + W + d*k; also the longest list of keys that a forward reads."""
        return self.sink_tokens + self.period_slots

    def pool_slots(self, rows: int) -> int:
        """Slots of a pool for `rows` requests, the dummy slot not counted."""
        return rows * self.row_slots

    def slot(self, row: int, position: int) -> int:
        """The slot of a position (>= 0) of the request in `row`."""
        if row == 0:
            return 0
        past_sink = position - self.sink_tokens
        offset = position if past_sink < 0 else self.sink_tokens + past_sink % self.period_slots
        return 1 + (row - 1) * self.row_slots + offset

    def kept(self, committed: int, recent_from: int) -> tuple[range, range]:
        """The committed positions a forward reads: the sink, then the recent ones from `recent_from` on.

        Args:
            committed: positions 0 .. committed - 1 are decided.
            recent_from: first recent position; below the sink's end it is raised to it.
        """
        sink_end = min(self.sink_tokens, committed)
        return range(sink_end), range(min(max(recent_from, sink_end), committed), committed)

    def overfills(self, first: int, tokens: int) -> bool:
        """Whether causal attention in a chunk shows its last token more than the sink and the last W.

        Args:
            first: the chunk's first position; before it, only what the last token may read is shown.
            tokens: those that run, the sink's among them (a pruned chunk's: fewer than it covers).
        """
        return tokens - max(self.sink_tokens - first, 0) > self.window_tokens

    def survives(self, position: int, end: int) -> bool:
        """Whether a later forward may read `position` once all positions below `end` are committed."""
        return position < self.sink_tokens or position >= end - self.window_tokens
