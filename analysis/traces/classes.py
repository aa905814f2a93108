"""What a kernel or operator does, by its name: the classes that the draft phase is broken down into.

Attention of a draft decode and of a draft extend may be the same kernel (FlashInfer's prefill serves both):
the part that launched it decides between them. Likewise everything launched by an index build is one.
"""

from __future__ import annotations

import re

from harness.phases import INDEX_BUILDS, base_part

INDEX, DECODE, EXTEND, ATTENTION = "index build", "attention decode", "attention extend", "attention"
MOE, NORM, COPY, MATMUL, OTHER = "MoE", "norm", "copy", "matmul", "other"
CLASSES = (INDEX, DECODE, EXTEND, ATTENTION, MOE, NORM, COPY, MATMUL, OTHER)

# The first that matches counts, so that the more telling names stand first.
_NAMES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        (
            INDEX,
            r"kv_ind(ices|ptr)|compact_table|cache_locs?(\b|_)|req_to_token|page_table|block_table",
        ),
        (MOE, r"moe|expert|top_?k_?gating|topk_softmax|grouped_?gemm|bmm_.*swiglu|routing"),
        (ATTENTION, r"attention|attn|flash|fmha|mha_|batch(decode|prefill)|paged(kv|params)|merge_state"),
        (ATTENTION, r"_fwd_(grouped_)?kernel(_stage\d)?|gdn|delta_rule|mamba|ssm|causal_conv"),
        (NORM, r"norm"),
        (COPY, r"memcpy|memset|copy|aten::(cat|clone|to|_to_copy|contiguous|fill_|zero_|index_put_?)\b"),
        (COPY, r"catarraybatched|fillfunctor"),
        (MATMUL, r"gemm|gemv|matmul|nvjet|cutlass|cublas|xmma|splitk|aten::(linear|mm|bmm|addmm|einsum)\b"),
    )
)


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
    found = next((kind for kind, pattern in _NAMES if pattern.search(f"{name} {detail}")), OTHER)
    if found != ATTENTION:
        return found
    if part.startswith("draft_extend"):
        return EXTEND
    return DECODE if part.startswith("draft") else ATTENTION
