"""What a server will admit, in tokens, before a prefill is spent on finding out.

The rules are SGLang 0.5.23's. Its front door adds the draft slots to the prompt and refuses what does not fit
the context length; its scheduler then compares the prompt with the smaller of context length and KV pool, and
cuts `max_new_tokens` to what is left without saying so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# The scheduler keeps 5 tokens of its longest request free, that request is one shorter than the context
# length, and its comparison is strict: 7 tokens over the request are never refused nor cut.
SLACK_TOKENS = 7
_INPUT_MARGIN_TOKENS = 5


class Verdict(StrEnum):
    """What the server does with a request."""

    OK = "ok"
    CLAMPED = "clamped"
    REJECT_INPUT = "reject_input"
    REJECT_TOTAL = "reject_total"
    REJECT_POOL = "reject_pool"


@dataclass(frozen=True)
class Admission:
    """The verdict on one request and the most tokens that it may return (0 when refused)."""

    verdict: Verdict
    completion_tokens: int


def context_length_for(prompt_tokens: int, max_new_tokens: int, draft_tokens: int) -> int:
    """Context length that refuses or cuts no arm: the deepest arm's drafts and the slack on top.

    Raises:
        ValueError: a negative length.
    """
    if min(prompt_tokens, max_new_tokens, draft_tokens) < 0:
        raise ValueError(
            f"lengths must not be negative: prompt_tokens={prompt_tokens}, "
            f"max_new_tokens={max_new_tokens}, draft_tokens={draft_tokens}"
        )
    return prompt_tokens + max_new_tokens + draft_tokens + SLACK_TOKENS


def largest_prompt(context_length: int, pool_tokens: int) -> int:
    """Longest prompt that the scheduler admits, in tokens; the front door may allow less."""
    return max(0, min(context_length, pool_tokens) - 1 - _INPUT_MARGIN_TOKENS - 1)


def admission(
    context_length: int, pool_tokens: int, draft_tokens: int, prompt_tokens: int, max_new_tokens: int
) -> Admission:
    """What the server does with one request on an empty pool.

    Args:
        context_length: the server's `--context-length`.
        pool_tokens: `max_total_num_tokens`, the KV pool.
        draft_tokens: max(topk * steps, d) under speculation, 0 without.
    """
    reserved = prompt_tokens + draft_tokens
    if reserved >= context_length:
        return Admission(Verdict.REJECT_INPUT, 0)
    if reserved + max_new_tokens > context_length:
        return Admission(Verdict.REJECT_TOTAL, 0)
    if prompt_tokens > largest_prompt(context_length, pool_tokens):
        return Admission(Verdict.REJECT_POOL, 0)
    room = min(context_length, pool_tokens) - 1 - 1 - prompt_tokens
    if room < max_new_tokens:
        return Admission(Verdict.CLAMPED, room)
    return Admission(Verdict.OK, max_new_tokens)


def tokens_needed(prompt_tokens: int, max_new_tokens: int, draft_tokens: int, batch: int) -> int:
    """KV tokens that `batch` requests hold at most together, so that none waits or is retracted.

    A decode step reserves twice its own slots for each request: max(draft_tokens, 1) for the step that runs
    and as many for the next.
    """
    return batch * (prompt_tokens + max_new_tokens + 2 * max(draft_tokens, 1))


def why_not(
    *,
    prompt_tokens: int,
    max_new_tokens: int,
    draft_tokens: int,
    batch: int,
    context_length: int | None,
    pool_tokens: int | None,
    max_running_requests: int | None,
    pool_setting: str = "server.mem_fraction_static",
) -> str:
    """Why these requests cannot run together on this server, in one sentence; empty where they can.

    A capacity that the server did not report (None) is not checked.

    Args:
        pool_setting: what decides on the size of the KV pool, to be named where it is too small.
    """
    more_pool = f"raise {pool_setting}, lower the batch or context, or use more GPUs"
    if max_running_requests is not None and batch > max_running_requests:
        return (
            f"max_running_requests {max_running_requests} is below the batch of {batch}; "
            "on hybrid models raise --max-running-requests or the state memory"
        )
    unlimited = prompt_tokens + max_new_tokens + draft_tokens + SLACK_TOKENS
    context = unlimited if context_length is None else context_length
    pool = unlimited if pool_tokens is None else pool_tokens
    verdict = admission(context, pool, draft_tokens, prompt_tokens, max_new_tokens)
    asked = f"a prompt of {prompt_tokens} tokens, {max_new_tokens} new ones and {draft_tokens} draft slots"
    pool_is_smaller = pool_tokens is not None and pool < context
    if verdict.verdict is not Verdict.OK:
        if pool_is_smaller and verdict.verdict in {Verdict.REJECT_POOL, Verdict.CLAMPED}:
            return f"pool {pool} holds no {asked}; {more_pool}"
        needed = context_length_for(prompt_tokens, max_new_tokens, draft_tokens)
        return (
            f"context length {context} for {asked}: lower context= or max_new_tokens=, or give a server that "
            f"runs already --context-length {needed}"
        )
    together = tokens_needed(prompt_tokens, max_new_tokens, draft_tokens, batch)
    if pool_tokens is not None and together > pool_tokens:
        return (
            f"pool {pool_tokens} holds fewer than the {together} tokens of {batch} requests "
            f"with {asked} each; {more_pool}"
        )
    return ""
