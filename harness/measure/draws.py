"""Many sampled continuations of one prompt: the target's distribution as an arm delivers it.

`probe=draws` at a temperature above 0. The prompt is sent again and again in batches of the point's own size,
each answer a few tokens long, and the tokens at each position are counted. The first comes from the prefill;
from the second on a speculative arm emits accepted drafts and corrections, so two arms with the same target
must agree there in distribution.

The numbers come from the server's own generator, which starts at the same seed in every arm. A few draws are
thrown away first, a different count in each arm, so that no two arms use the same numbers for the same place:
equal numbers would make arms agree more than chance does. The draws of one arm are repeatable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from harness.points import ARMS, Point

DRAWS = 2048
TOKENS = 8

Ask = Callable[[Sequence[Sequence[int]], dict[str, Any]], list[dict[str, Any]]]
"""Sends prompts with sampling parameters and returns the replies."""


def draw(ask: Ask, point: Point, prompt_ids: Sequence[int], draws: int = DRAWS) -> dict[str, Any]:
    """The entry `draws` of `record.extras`.

    Args:
        draws: continuations, rounded up to whole batches.
    """
    sampling = {
        "temperature": point.temperature,
        "max_new_tokens": TOKENS,
        "ignore_eos": True,
        "repetition_penalty": point.repetition_penalty,
    }
    for _ in range(1 + ARMS.index(point.arm)):
        ask([prompt_ids], sampling)
    counts = [Counter[int]() for _ in range(TOKENS)]
    requests = verify_steps = accepted = 0
    while requests < draws:
        for reply in ask([prompt_ids] * point.batch, sampling):
            for position, token in enumerate(reply["output_ids"][:TOKENS]):
                counts[position][int(token)] += 1
            verify_steps += int(reply["meta_info"].get("spec_verify_ct") or 0)
            accepted += int(reply["meta_info"].get("spec_num_correct_drafts") or 0)
            requests += 1
    return {
        "requests": requests,
        "temperature": point.temperature,
        "verify_steps": verify_steps,
        "accepted_drafts": accepted,
        # JSON has no integer keys.
        "positions": [{str(token): n for token, n in sorted(c.items())} for c in counts],
    }
