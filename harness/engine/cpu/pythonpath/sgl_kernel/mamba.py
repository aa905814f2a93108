"""The names SGLang imports from `sgl_kernel.mamba`."""

from __future__ import annotations

from .convolution import causal_conv1d_fn_cpu, causal_conv1d_update_cpu
from .delta_rule import chunk_gated_delta_rule_cpu

__all__ = ["causal_conv1d_fn_cpu", "causal_conv1d_update_cpu", "chunk_gated_delta_rule_cpu"]
