"""What hybrids of Mamba2 layers (Nemotron-H) still need on a CPU: SGLang launches CUDA or Triton there.

Their feed-forwards need a hand too: experts without a gate, and a router that multiplies into float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.engine.cpu.state_space import scan_prompts, update_states

_TRITON = "sglang.kernels.ops.mamba.triton_ops."


def hooks(before: Any, around: Any, replace: Any) -> list[tuple[str, Callable[..., Any], Any]]:
    """Targets, hooks and their kinds (SGLang's `HookType`)."""
    return [
        ("sglang.srt.layers.attention.mamba.mamba.MambaMixer2.__init__", bind_convolutions, before),
        (_TRITON + "ssd_combined.mamba_chunk_scan_combined", scan_prompts, replace),
        (_TRITON + "ssu_dispatch.selective_state_update", update_states, replace),
        ("sglang.srt.layers.moe.fused_moe_native.moe_forward_native", ungated_experts, around),
        ("torch.mm", product_in_dtype, around),
        ("torch.cuda.synchronize", wait_for_gpu, around),
    ]


def bind_convolutions(*args: Any, **kwargs: Any) -> None:
    """The mixer's module imports its convolutions on GPUs alone, and uses these names on any device."""
    from sgl_kernel.mamba import causal_conv1d_fn_cpu, causal_conv1d_update_cpu
    from sglang.srt.layers.attention.mamba import mamba

    mamba.causal_conv1d_fn = mamba.causal_conv1d_fn_triton = causal_conv1d_fn_cpu
    mamba.causal_conv1d_update = mamba.causal_conv1d_update_triton = causal_conv1d_update_cpu


def ungated_experts(
    original: Callable[..., Tensor], layer: Any, x: Tensor, topk_output: Any, moe_runner_config: Any
) -> Tensor:
    """Experts down(relu(up(x))^2), weighted by the router; SGLang's loop knows gated ones alone.

    Args:
        x: [tokens, hidden].
        topk_output: weights and experts of each token [tokens, top_k], and the router's logits.

    Returns:
        [tokens, hidden].
    """
    if moe_runner_config.is_gated or moe_runner_config.activation != "relu2":
        return original(layer, x, topk_output, moe_runner_config)
    weights, experts, _ = topk_output
    each = torch.zeros(*experts.shape, x.shape[-1])
    for expert in experts.unique().tolist():
        token, choice = (experts == expert).nonzero(as_tuple=True)
        inner = functional.relu(functional.linear(x[token], layer.w13_weight[expert])).square()
        each[token, choice] = functional.linear(inner, layer.w2_weight[expert]).float()
    return (each * weights.float()[..., None]).sum(1).to(x.dtype)


def product_in_dtype(original: Callable[..., Tensor], input: Tensor, mat2: Tensor, **options: Any) -> Tensor:
    """`torch.mm` with `out_dtype`, which PyTorch has on GPUs alone."""
    dtype = options.get("out_dtype")
    if dtype is None or input.device.type != "cpu":
        return original(input, mat2, **options)
    return functional.linear(input.to(dtype), mat2.to(dtype).t())


def wait_for_gpu(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Nemotron-H's draft waits for the GPU after it took over the target's embedding: there may be none."""
    if torch.cuda.is_available():
        original(*args, **kwargs)
