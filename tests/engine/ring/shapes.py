"""Random shapes and states for the tests of this folder."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from harness.engine.settings import EngineSettings, Mode
from harness.engine.state import DraftState

ROWS = 6
POSITIONS = 400


def make_state(mode: Mode, sink: int, window: int, depth: int, topk: int = 1, seed: int = 0) -> DraftState:
    """A state over a target table of random slots."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randperm((ROWS + 1) * POSITIONS, generator=generator).to(torch.int32)
    table = table.view(ROWS + 1, POSITIONS)
    table[0] = 0
    return DraftState(EngineSettings(mode, window, sink, depth, topk), table, "cpu")


@st.composite
def shapes(draw: Any) -> tuple[int, int, int, int]:
    """(sink, window, depth, topk)."""
    depth, topk = draw(st.integers(2, 8)), draw(st.integers(1, 3))
    window = draw(st.integers(depth * topk, 60))
    return draw(st.integers(0, 9)), window, depth, topk


lanes = st.lists(st.tuples(st.integers(0, ROWS), st.integers(1, 300)), min_size=1, max_size=5)
"""(row, committed tokens) of the requests of a batch; row 0 pads."""
