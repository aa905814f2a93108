"""The Triton index kernel, interpreted on the CPU, against the host's tables; and compiled for real GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpretedFunction

from harness.engine import kernels
from harness.engine.backends.views import CompactViews
from harness.engine.settings import Mode
from tests.engine.ring.shapes import ROWS, lanes, make_state, shapes

few = settings(max_examples=25)
modes = st.sampled_from(["windowed", "ring"])


@pytest.fixture(autouse=True, scope="module")
def interpreted() -> Iterator[None]:
    """Run the kernel through Triton's interpreter, whatever this process was started with."""
    kernel = kernels.compact_table_kernel
    with pytest.MonkeyPatch.context() as patch:
        if not isinstance(kernel, InterpretedFunction):
            patch.setattr(kernels, "compact_table_kernel", InterpretedFunction(kernel.fn))
        patch.setattr(kernels, "BLOCK", 32)
        yield


@few
@given(modes, shapes(), lanes)
def test_decode_view_equals_the_host_table(
    mode: Mode, shape: tuple[int, int, int, int], where: list[tuple[int, int]]
) -> None:
    sink, window, depth, topk = shape
    state = make_state(mode, sink, window, depth, topk)
    tail = topk * (depth - 1)
    views = CompactViews(state, SimpleNamespace(req_to_token=state.req_to_token), ROWS, tail)
    rows = torch.tensor([row for row, _ in where])
    committed = torch.tensor([length for _, length in where])
    batch = SimpleNamespace(
        batch_size=len(where),
        req_pool_indices=rows,
        seq_lens=committed,
        positions=committed,
        seq_lens_cpu=committed,
        seq_lens_sum=int(committed.sum()),
    )
    view = views.decode(batch, tail)
    own = committed[:, None] + torch.arange(tail)
    table, lengths = state.read_table(rows, committed, committed - window, own)
    assert torch.equal(view.seq_lens, lengths)
    # On the host the lengths are known without asking the device.
    assert torch.equal(view.seq_lens_cpu, lengths)
    assert view.seq_lens_sum == int(lengths.sum())
    assert view.positions.shape[0] == len(where) * topk
    assert view.req_pool_indices.tolist() == list(range(len(where)))
    for lane in range(len(where)):
        used = int(lengths[lane]) + tail
        assert used <= views.columns
        assert torch.equal(views.table[lane, :used], table[lane, :used])
    # The real batch keeps its rows and lengths: they place what is written.
    assert batch.req_pool_indices is rows
    assert batch.seq_lens is committed


@few
@given(modes, shapes(), lanes, st.integers(1, 90))
def test_extend_view_equals_the_host_table(
    mode: Mode, shape: tuple[int, int, int, int], where: list[tuple[int, int]], tokens: int
) -> None:
    sink, window, depth, topk = shape
    state = make_state(mode, sink, window, depth, topk)
    views = CompactViews(state, SimpleNamespace(req_to_token=state.req_to_token), ROWS, 0)
    rows = torch.tensor([row for row, _ in where])
    ends = torch.tensor([length for _, length in where])
    prefix = (ends - tokens).clamp(min=0)
    counts = torch.clamp(ends - prefix, max=3)
    batch = SimpleNamespace(batch_size=len(where), req_pool_indices=rows, seq_lens=ends)
    view = views.extend(batch, counts, prefix, ends - window)
    table, lengths = state.read_table(rows, prefix, ends - window)
    assert torch.equal(view.extend_prefix_lens.long(), lengths)
    assert torch.equal(view.seq_lens, lengths + counts)
    for lane in range(len(where)):
        used = int(lengths[lane])
        assert torch.equal(views.table[lane, :used], table[lane, :used])


def test_padded_lanes_read_the_dummy_slot_and_touch_no_other_lane() -> None:
    state = make_state("ring", 4, 16, 5)
    views = CompactViews(state, SimpleNamespace(req_to_token=state.req_to_token), ROWS, 4)
    views.table.fill_(-1)
    rows, lengths = torch.tensor([3, 0, 0]), torch.tensor([90, 1, 1])
    batch = SimpleNamespace(
        batch_size=3, req_pool_indices=rows, seq_lens=lengths, positions=lengths, seq_lens_cpu=None
    )
    view = views.decode(batch, 4)
    assert view.seq_lens.tolist() == [20, 1, 1]
    assert view.seq_lens_cpu is None
    assert views.table[1, :5].tolist() == views.table[2, :5].tolist() == [0] * 5
    assert (views.table[0, :24] > 0).all()
    assert (views.table[1:3, 5:] == -1).all()
    assert (views.table[3:] == -1).all()


def test_an_empty_batch_launches_nothing() -> None:
    state = make_state("ring", 4, 16, 5)
    views = CompactViews(state, SimpleNamespace(req_to_token=state.req_to_token), ROWS, 4)
    none = torch.empty(0, dtype=torch.int64)
    batch = SimpleNamespace(
        batch_size=0, req_pool_indices=none, seq_lens=none, positions=none, seq_lens_cpu=None
    )
    assert views.decode(batch, 4).seq_lens.numel() == 0


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from harness.engine.kernels import compact_table_kernel as kernel
pointers = dict.fromkeys(["rows", "committed", "recent_from", "lengths"], "*i64")
pointers |= dict.fromkeys(["req_to_token", "table"], "*i32")
scalars = dict(req_to_token_stride="i32", table_stride="i32", tail_tokens="i32")
constants = dict(SINK=64, PERIOD=4039, ROW_SLOTS=4103, BLOCK_COLUMNS=1024)
for architecture in (90, 100):
    for ring in (True, False):
        values = {**constants, "RING": ring}
        signature = {**pointers, **scalars, **dict.fromkeys(values, "constexpr")}
        source = ASTSource(fn=kernel, signature=signature, constexprs=values)
        built = triton.compile(source, target=GPUTarget("cuda", architecture, 32))
        assert len(built.asm["cubin"]) > 0
        assert f".target sm_{architecture}" in built.asm["ptx"]
        print("compiled", architecture, ring)
"""


def test_the_kernel_compiles_for_hopper_and_blackwell(tmp_path: object) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("compiled") == 4
