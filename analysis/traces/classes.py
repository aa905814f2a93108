"""What a kernel or operator does, by its name: the classes that the draft phase is broken down into.

Attention of a draft decode and of a draft extend may be the same kernel (FlashInfer's prefill serves both):
the part that launched it decides between them. Likewise everything launched by an index build is one.
"""

from __future__ import annotations

import re

from harness.phases import INDEX_BUILDS, base_part

INDEX, DECODE, EXTEND, ATTENTION = "index build", "attention decode", "attention extend", "attention"
RECURRENT, MOE, NORM, COPY, MATMUL = "recurrent", "MoE", "norm", "copy", "matmul"
COMMUNICATION, OTHER = "communication", "other"
CLASSES = (INDEX, DECODE, EXTEND, ATTENTION, RECURRENT, MOE, NORM, COPY, MATMUL, COMMUNICATION, OTHER)

# The first that matches counts: the more telling names stand first. Copies hold gathers and fills.
_NAMES: tuple[tuple[str, str], ...] = (
    (INDEX, r"kv_ind(ices|ptr)|compact_table|cache_locs?(\b|_)|req_to_token|page_table|block_table"),
    (COMMUNICATION, r"nccl|all_?reduce|all_?gather|reduce_?scatter|cross_device|gloo|c10d::"),
    (MOE, r"moe|expert|top_?k_?gating|topk_softmax|grouped_?gemm|bmm_.*swiglu|routing"),
    (NORM, r"norm"),
    (RECURRENT, r"gdn|delta_rule|gated_delta|mamba|ssm|causal_conv"),
    (ATTENTION, r"attention|attn|flash_fwd|flash::|fmha|batch(decode|prefill)|paged(kv|params)"),
    (ATTENTION, r"_fwd_(grouped_)?kernel(_stage\d)?|merge_state|scaled_dot_product"),
    (COPY, r"memcpy|memset|copy|catarraybatched|fillfunctor|index_?select|gather"),
    (COPY, r"aten::(cat|stack|clone|to|contiguous|fill_|zero_|zeros|full|index|index_put_?)(\s|$)"),
    (MATMUL, r"gemm|gemv|matmul|nvjet|cutlass|cublas|xmma|splitk"),
    (MATMUL, r"aten::(linear|mm|bmm|addmm|einsum)(\s|$)"),
)
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _NAMES)


def class_of(name: str, part: str = "", detail: str = "") -> str:
    """The class of a kernel or operator.

    Args:
        name: its short name.
        part: the part of the iteration that launched it (`harness.phases`), where known.
        detail: its full name with template arguments: copies and fills of torch are told apart only there.
    """
    part = base_part(part)
    if part in INDEX_BUILDS or part == "verify_index":
        return INDEX
    found = next((kind for kind, pattern in _PATTERNS if pattern.search(f"{name} {detail}")), OTHER)
    if found != ATTENTION:
        return found
    if part.startswith("draft_extend"):
        return EXTEND
    return DECODE if part.startswith("draft") else ATTENTION
