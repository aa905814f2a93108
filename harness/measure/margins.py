"""Top-1 minus top-2 logit at every output token: how near the target was to saying something else.

Asked for along with the request itself (`probe=margins`): a record of its own, so that no timed run pays for
log probabilities and no second prefill is needed. A difference of log probabilities is one of logits; these
are the logits that decided: with a penalty, the penalised ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.errors import ServerError

OPTIONS: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2}
"""What `/generate` is asked besides."""
_LOGPROBS = "logprobs"
_DIGITS = 5


def margins(reply: Mapping[str, Any]) -> list[float]:
    """One margin an output token, in logits.

    Raises:
        ServerError: the reply holds fewer than two candidates for a token.
    """
    rows = reply["meta_info"].get("output_top_logprobs") or []
    count = len(reply["output_ids"])
    if len(rows) < count or any(not row or len(row) < 2 for row in rows[:count]):
        raise ServerError(
            f"the server gave the best two candidates for {len(rows)} of {count} output tokens: "
            "margins cannot be told",
            "request_error",
        )
    best = (sorted((float(entry[0]) for entry in row), reverse=True) for row in rows[:count])
    return [round(row[0] - row[1], _DIGITS) for row in best]


def without_logprobs(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The server's meta data less the lists of log probabilities, for a record."""
    return {name: value for name, value in meta.items() if not name.endswith(_LOGPROBS)}
