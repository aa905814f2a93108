"""Where SGLang's CPU mode still needs a hand: the hooks a CPU server registers.

Each replaces a Triton or CUDA launch that SGLang makes on every device, undoes a check that the plain-PyTorch
kernels make pointless, or makes results repeatable. None is registered unless the process serves on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.engine import compat
from harness.engine.cpu import mamba2
from harness.engine.cpu.linear import stable_linear, stable_lm_head
from harness.engine.cpu.sampling import verify_uses_greedy

_OVERRIDES = "sglang.srt.arg_groups.overrides."
_ELEMENTWISE = "sglang.kernels.ops.elementwise.elementwise."
_MAMBA = "sglang.kernels.ops.mamba.mamba_state_scatter_triton."


def register(registry: Any, hook_type: Any) -> None:
    """Register the hooks of CPU mode, and one more that ends the process unless SGLang applied them all.

    Args:
        registry: SGLang's `HookRegistry`.
        hook_type: SGLang's `HookType`.
    """
    around, before, replace = hook_type.AROUND, hook_type.BEFORE, hook_type.REPLACE
    hooks: list[tuple[str, Callable[..., Any], Any]] = [
        (_OVERRIDES + "_attention_backend_platform_fallbacks", keep_attention_backend, around),
        ("sglang.srt.speculative.eagle_utils.default_tree_mask_mode", tree_mask_mode, around),
        ("sglang.srt.speculative.eagle_utils._verify_uses_greedy", verify_uses_greedy, around),
        ("sglang.srt.distributed.parallel_state.init_model_parallel_group", without_nccl, before),
        ("sglang.kernels.ops.attention.fla.layernorm_gated.RMSNorm.forward", gated_rms_norm, around),
        (_MAMBA + "scatter_mamba_states_after_mtp_verify", commit_verified_states, replace),
        (_ELEMENTWISE + "fused_gate_sigmoid_mul", gated_shared_expert, replace),
        (_ELEMENTWISE + "fused_gate_sigmoid_mul_add", add_gated_shared_expert, replace),
        ("torch.nn.functional.linear", stable_linear, around),
        ("sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head", stable_lm_head, around),
        *mamba2.hooks(before, around, replace),
    ]
    for target, hook, kind in hooks:
        registry.register(target, hook, kind)
    targets = [target for target, _, _ in hooks]

    def check_applied(*args: Any, **kwargs: Any) -> None:
        """Without one of them a CPU server would answer, and wrongly."""
        compat.require_applied(targets, registry._patched)

    registry.register("sglang.srt.server_args.ServerArgs.check_server_args", check_applied, hook_type.AFTER)


def keep_attention_backend(original: Callable[[Any], dict[str, Any]], view: Any) -> dict[str, Any]:
    """Without AMX tiles SGLang swaps `intel_amx` for a backend that has no speculation; ours needs no AMX."""
    if view.device == "cpu" and view.attention_backend == "intel_amx":
        return {}
    return original(view)


def tree_mask_mode(original: Callable[[], Any]) -> Any:
    """The Triton backend reads masks that span the prefix, also when it runs interpreted on a CPU.

    SGLang picks the compact layout for every CPU server; Triton's verify would read beyond its end.
    """
    from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode
    from sglang.srt.runtime_context import attention_backends

    _, decode_backend = attention_backends()
    return TreeMaskMode.FULL_MASK if decode_backend == "triton" else original()


def without_nccl(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Groups of CPU ranks use gloo: the NCCL wrapper insists on a CUDA device."""
    place = 3  # of use_pynccl among the positional arguments
    if len(args) > place:
        args = (*args[:place], False, *args[place + 1 :])
    else:
        kwargs["use_pynccl"] = False
    return args, kwargs


def gated_rms_norm(original: Callable[..., Tensor], self: Any, x: Tensor, z: Tensor | None = None) -> Tensor:
    """SGLang launches Triton here unless it found AMX."""
    if self.norm_before_gate and self.group_size is None and self.activation == "swish":
        return torch.ops.sgl_kernel.fused_rmsnorm_gated_cpu(x, self.weight, z, self.eps)
    return original(self, x, z)


def commit_verified_states(
    mamba_caches: Any,
    state_indices_tensor: Tensor,
    last_correct_step_indices: Tensor,
    mamba_track_indices: Tensor | None,
    mamba_steps_to_track: Tensor | None,
    src_indices_raw: Tensor | None = None,
) -> None:
    """After a verify, each request's recurrent state becomes the one after its last accepted token.

    Args:
        mamba_caches: pools `temporal` and `conv[i]` [layers, slots, ...], and what the verify stored:
            `intermediate_ssm` and `intermediate_conv_window[i]` [layers, scratch rows, steps, ...].
        state_indices_tensor: [requests] slots.
        last_correct_step_indices: [requests] step to keep; negative leaves the slot alone.
        mamba_track_indices, mamba_steps_to_track: the same once more for prefix-cache snapshots, or None.
        src_indices_raw: [requests] scratch rows; None for 0, 1, 2, ...
    """
    pairs = [(mamba_caches.temporal, mamba_caches.intermediate_ssm)]
    pairs += zip(mamba_caches.conv, mamba_caches.intermediate_conv_window, strict=True)
    _copy_steps(pairs, state_indices_tensor, last_correct_step_indices, src_indices_raw)
    if mamba_track_indices is not None and mamba_steps_to_track is not None:
        _copy_steps(pairs, mamba_track_indices, mamba_steps_to_track, src_indices_raw)


def gated_shared_expert(hidden_states: Tensor, gate_weight: Tensor, shared_output: Tensor) -> Tensor:
    """sigmoid(hidden . gate) * shared expert, [tokens, hidden]; the sigmoid in float32."""
    return (shared_output.float() * _shared_gate(hidden_states, gate_weight)).to(shared_output.dtype)


def add_gated_shared_expert(
    hidden_states: Tensor, gate_weight: Tensor, shared_output: Tensor, final_hidden_states: Tensor
) -> None:
    """The same, added to the routed experts' output in place."""
    final_hidden_states.copy_(
        final_hidden_states.float() + shared_output.float() * _shared_gate(hidden_states, gate_weight)
    )


def _shared_gate(hidden_states: Tensor, gate_weight: Tensor) -> Tensor:
    logits = (hidden_states.float() * gate_weight.float().view(1, -1)).sum(-1, keepdim=True)
    return torch.sigmoid(logits.double()).float()


def _copy_steps(
    pairs: list[tuple[Tensor, Tensor]], slots: Tensor, steps: Tensor, scratch_rows: Tensor | None
) -> None:
    rows = torch.arange(steps.shape[0]) if scratch_rows is None else scratch_rows.long()
    for slot, step, row in zip(slots.tolist(), steps.tolist(), rows.tolist(), strict=True):
        if slot < 0 or step < 0:
            continue
        for pool, stored in pairs:
            if pool.numel():
                pool[:, slot] = stored[:, row, step]
