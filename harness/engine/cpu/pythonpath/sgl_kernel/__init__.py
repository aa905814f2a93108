"""SGLang's CPU kernels in plain PyTorch.

The published `sgl_kernel` is compiled for CUDA and cannot be imported without it. SGLang's CPU mode imports
a few dozen of its names; the ones needed to serve dense, mixture-of-experts and gated-delta-rule models with
NEXTN speculation are here, written from their definitions (Mamba2's recurrence, for which SGLang asks no CPU
kernel, is in `harness/engine/cpu`). The launcher puts this package's parent folder
first on the import path of CPU servers, and of no other process.

`convert_weight_packed` is deliberately missing: SGLang takes its absence to mean that the AMX paths (other
weight layouts, fused integer kernels) are not available, so that results don't depend on the processor.
"""

from __future__ import annotations

import torch

from . import attention, convolution, delta_rule, elementwise
from .slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from .tree import build_draft_decode_metadata_cpu, build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "0.0.0+torch"

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

OPERATORS = {
    name: getattr(module, name)
    for module in (attention, convolution, delta_rule, elementwise)
    for name in module.OPERATORS
}
"""What SGLang looks up as `torch.ops.sgl_kernel.<name>`."""

# Plain functions instead of registered operators: SGLang only ever calls them, and the dispatcher would add
# microseconds to each of the hundreds of calls of a step.
for _name, _function in OPERATORS.items():
    setattr(torch.ops.sgl_kernel, _name, _function)
