"""What a probe has to know of one draft forward, and how many of them it looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class DraftForward:
    """One forward of a chain draft that ends in a proposal for each request; everything is on the host.

    Attributes:
        draft_position: which token of the chain it proposes: 1 in the draft extend after a verify, whose
            output the next iteration begins with, 2, 3, ... in the decode forwards.
        rows: each request's row of `req_to_token`.
        committed: positions 0 .. committed - 1 were decided when this forward began.
        positions: position of the token that each proposal follows from; its key and those from `committed`
            on were written by this step.
        tokens: index of that token among the forward's.
        tokens_per_request: tokens that the forward runs for each request.
    """

    draft_position: int
    rows: tuple[int, ...]
    committed: tuple[int, ...]
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    tokens_per_request: int

    @classmethod
    def of(cls, forward_batch: Any) -> DraftForward | None:
        """The forward that SGLang's `ForwardBatch` describes; None where it proposes nothing to probe."""
        mode = forward_batch.forward_mode
        if mode.is_idle() or not forward_batch.batch_size:
            return None
        if mode.is_decode():
            return cls._decode(forward_batch)
        return cls._extend(forward_batch) if mode.is_draft_extend_v2() else None

    @classmethod
    def _decode(cls, forward_batch: Any) -> DraftForward:
        rows, committed, positions = _to_host(
            forward_batch.req_pool_indices, forward_batch.seq_lens, forward_batch.positions
        )
        requests = len(rows)
        return cls(positions[0] - committed[0] + 2, rows, committed, positions, tuple(range(requests)), 1)

    @classmethod
    def _extend(cls, forward_batch: Any) -> DraftForward:
        """Each request runs as many tokens as a step drafts; the last accepted one's output is used."""
        rows, prefix, accepted = _to_host(
            forward_batch.req_pool_indices,
            forward_batch.extend_prefix_lens,
            forward_batch.spec_info.num_accept_tokens,
        )
        each = forward_batch.input_ids.shape[0] // len(rows)
        last = [count - 1 for count in accepted]
        return cls(
            draft_position=1,
            rows=rows,
            committed=prefix,
            positions=tuple(start + own for start, own in zip(prefix, last, strict=True)),
            tokens=tuple(i * each + own for i, own in enumerate(last)),
            tokens_per_request=each,
        )

    def facts(self, request: int) -> dict[str, int]:
        """What every line about one of the requests carries."""
        return {
            "batch": len(self.rows),
            "context_tokens": max(self.committed),
            "request": request,
            "draft_position": self.draft_position,
        }


def _to_host(*columns: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    """Columns of equal length in one copy from the device."""
    together = torch.stack([column.to(torch.int64) for column in columns])
    return tuple(tuple(row) for row in together.tolist())


class Budget:
    """Bounds a probe: of the draft forwards after a prefill, those that are looked at.

    Args:
        warm: forwards left out first.
        most: forwards looked at then; later ones run unprobed.
    """

    def __init__(self, warm: int, most: int) -> None:
        self._warm, self._most = warm, most
        self._seen: int | None = None

    def restart(self) -> None:
        """A prompt was prefilled: a run begins. Before the first one nothing is looked at."""
        self._seen = 0

    def take(self) -> bool:
        """Whether to look at the forward at hand; counts it."""
        if self._seen is None:
            return False
        self._seen += 1
        return self._warm < self._seen <= self._warm + self._most
