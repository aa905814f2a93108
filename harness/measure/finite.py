"""Whether a server computes numbers at all: NaN weights give tokens too, and drafts that always agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import ServerError
from harness.records import Outcome

OPTIONS: dict[str, Any] = {"return_logprob": True}
"""What `/generate` is asked besides; JSON has no NaN, so that null stands for it."""


def not_finite(replies: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a reply holds a token whose log probability is no finite number.

    False where a server gave none: then nothing can be said.
    """
    for reply in replies:
        for row in reply["meta_info"].get("output_token_logprobs") or []:
            value = row[0] if isinstance(row, (list, tuple)) and row else 0.0
            if value is None or not math.isfinite(value):
                return True
    return False


def refusal() -> ServerError:
    """What a point of such a server ends with."""
    return ServerError(
        "the model's log probabilities are no numbers (NaN or infinite), so that its tokens mean nothing: "
        "its weights are damaged, or this dtype or quantisation overflows; get the checkpoint again, or "
        "choose another model.dtype",
        Outcome.INVALID,
    )
