"""SGLang's FlashInfer draft backends in a test's own process: stand-in wrappers, pool, runner, and a history.

A history gives each request's keys and values by position, and puts into the pool what a draft would have
written there by now. What a forward should read can then be said by position, without any slot.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.engine.state import DraftState
from tests.engine.ring import flashinfer_standin as standin
from tests.engine.ring.shapes import POSITIONS, ROWS

HEADS, KV_HEADS, DIM = 4, 2, 8
LAYER = SimpleNamespace(
    layer_id=0,
    tp_q_head_num=HEADS,
    tp_k_head_num=KV_HEADS,
    tp_v_head_num=KV_HEADS,
    head_dim=DIM,
    scaling=DIM**-0.5,
    logit_cap=0.0,
    is_cross_attention=False,
    attn_type=None,
    sliding_window_size=-1,
    k_scale=None,
    v_scale=None,
    k_scale_float=None,
    v_scale_float=None,
)


class Pool:
    """Keys and values of one layer; `poison` first, so that a slot read unwritten is seen."""

    def __init__(self, slots: int) -> None:
        self.keys = torch.full((slots, KV_HEADS, DIM), float("nan"))
        self.values = self.keys.clone()
        # The dummy slot is written by every padded lane.
        self.keys[0] = self.values[0] = 0.0
        self.quantised: Any = None

    def get_kv_cache_quant_method(self) -> Any:
        return SimpleNamespace(
            resolve_attention_access=lambda phase, backend: SimpleNamespace(
                kind=self.quantised, scale_recipe=None
            ),
            needs_global_scale=lambda: False,
        )

    def get_kv_buffer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.keys, self.values

    def set_kv_buffer(self, layer: Any, where: Any, keys: Tensor, values: Tensor, *scales: Any) -> None:
        self.write(where.loc, keys, values)

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        self.keys[slots] = keys.view(-1, KV_HEADS, DIM)
        self.values[slots] = values.view(-1, KV_HEADS, DIM)


class History:
    """Keys and values [rows + 1, positions, kv heads, dim] by position, and the pool that holds some."""

    def __init__(self, state: DraftState, seed: int) -> None:
        self.state = state
        self.generator = torch.Generator().manual_seed(seed)
        self.keys, self.values = (self.random(ROWS + 1, POSITIONS, KV_HEADS, DIM) for _ in range(2))
        slots = state.geometry.pool_slots(ROWS) if state.is_ring else int(state.req_to_token.max())
        self.pool = Pool(slots + 1)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def write(self, row: int, end: int) -> None:
        """Store positions 0 .. end - 1, as forwards would have: a ring keeps the sink and the last ones."""
        if row == 0:
            return
        geometry = self.state.geometry
        lost = max(geometry.sink_tokens, end - geometry.period_slots) if self.state.is_ring else 0
        held = [p for p in range(end) if p < geometry.sink_tokens or p >= lost]
        slots = self.state.slots(torch.tensor(row), torch.tensor(held))
        self.pool.write(slots, self.keys[row, held], self.values[row, held])

    def attention(self, row: int, query: Tensor, positions: list[int]) -> Tensor:
        """What query [heads * dim] should get over exactly these positions."""
        keys, values = self.keys[row, positions], self.values[row, positions]
        out, _ = standin.attend(query.view(1, HEADS, DIM), keys, values, LAYER.scaling, 0.0, False)
        return out.view(-1)

    def kept(self, committed: int, recent_from: int) -> list[int]:
        """Positions that the geometry lets a forward read of the committed ones."""
        return [p for span in self.state.geometry.kept(committed, recent_from) for p in span]


class Mode:
    """Stand-in for SGLang's ForwardMode."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, question: str) -> Any:
        kinds = {
            "is_idle": (),
            "is_decode": ("decode",),
            "is_decode_or_idle": ("decode",),
            "is_target_verify": (),
            "is_dllm_extend": (),
            "is_draft_extend_v2": ("draft_extend",),
            "is_extend": ("prefill", "draft_extend"),
            "is_extend_without_speculative": ("prefill",),
        }
        return lambda: self.name in kinds[question]


def translator(state: DraftState) -> Any:
    """SGLang's KVIndexTranslator of a plain pool, without the pools it is made of."""
    from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator

    made: Any = object.__new__(KVIndexTranslator)
    made.req_to_token, made.page_size, made.device, made._spaces = state.req_to_token, 1, "cpu", {}
    made.is_translating = False
    return made


def runner(state: DraftState, pool: Pool, multimodal: bool = False) -> Any:
    """What the backends ask of a draft's ModelRunner."""
    config = SimpleNamespace(
        num_attention_heads=HEADS,
        get_max_num_attention_heads=lambda: HEADS,
        get_num_kv_heads=lambda *parallel: KV_HEADS,
        context_len=POSITIONS,
        head_dim=DIM,
        v_head_dim=DIM,
        is_multimodal=multimodal,
        is_encoder_decoder=False,
        hf_config=SimpleNamespace(architectures=["Tiny"]),
    )
    return SimpleNamespace(
        req_to_token_pool=SimpleNamespace(size=ROWS, req_to_token=state.req_to_token),
        token_to_kv_pool=pool,
        kv_index_translator=translator(state),
        is_draft_worker=True,
        spec_algorithm=SimpleNamespace(is_frozen_kv_mtp=lambda: False),
        server_args=None,
        prefill_attention_backend_str="flashinfer",
        decode_attention_backend_str="flashinfer",
        kv_cache_dtype=torch.float32,
        dtype=torch.float32,
        model_config=config,
        page_size=1,
        sliding_window_size=None,
        device="cpu",
        windowed_mtp=state,
    )


@contextmanager
def stand_ins() -> Any:
    """SGLang's FlashInfer module on stand-ins, its index kernels interpreted, for a block of tests."""
    from sglang.kernels.ops.speculative import cache_locs
    from sglang.srt.layers.attention import flashinfer_backend as upstream
    from sglang.srt.mem_cache import kv_index_translator
    from triton import language
    from triton.runtime.interpreter import InterpretedFunction

    from harness.engine import kernels

    execution = SimpleNamespace(
        features=SimpleNamespace(enable_mis=False),
        deterministic=SimpleNamespace(enable_deterministic_inference=False),
    )
    functions = {
        "get_exec": lambda: execution,
        "get_parallel": lambda: SimpleNamespace(attn_tp_size=1, attn_dcp_size=1),
        "get_platform": lambda: SimpleNamespace(is_sm100=False),
        "get_buffer": lambda name, make: torch.empty(0),
        "get_cuda_graph_max_batch_size": lambda lanes: lanes,
        "resolve_draft_decode_window": lambda runner: (7, 3),
        "DllmConfig": SimpleNamespace(from_server_args=lambda arguments: None),
        "is_in_tc_piecewise_cuda_graph": lambda: False,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (standin.REPLACED | functions).items():
            patch.setattr(upstream, name, value, raising=False)
        for module, name in (
            (kernels, "compact_table_kernel"),
            (kv_index_translator, "create_flashinfer_kv_indices_triton"),
            (cache_locs, "_load_token_ids"),
            (upstream, "generate_draft_decode_kv_indices"),
            # Written in Triton themselves, and made for a GPU when triton was imported.
            (language, "cdiv"),
            (language, "sum"),
        ):
            kernel = getattr(module, name)
            if not isinstance(kernel, InterpretedFunction):
                patch.setattr(module, name, InterpretedFunction(kernel.fn))
        yield SimpleNamespace(upstream=upstream, execution=execution)
