"""Whether a reply measured what was asked: the prompt's length and the number of tokens returned."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LengthVerdict(StrEnum):
    """What a length check says."""

    OK = "ok"
    INVALID = "invalid"
    RECHECK_COLD = "recheck_cold"


@dataclass(frozen=True)
class LengthCheck:
    """A verdict and, unless it is `ok`, the sentence that explains it."""

    verdict: LengthVerdict
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the length is as it should be."""
        return self.verdict is LengthVerdict.OK


def check_prompt_tokens(
    target_tokens: int, server_prompt_tokens: int, cached_tokens: int | None = None
) -> LengthCheck:
    """Compare the prompt length that the server counted with the one that was to be measured.

    Exact or invalid: one token of difference (a BOS, a template) is a different input. Where the server's
    count is short and it took tokens from its prefix cache, the count may leave those out: the request has
    to be repeated on an empty cache before anything can be said.

    Args:
        target_tokens: S, template and special tokens included.
        server_prompt_tokens: `prompt_tokens` of the reply.
        cached_tokens: `cached_tokens` of the reply; None where it has none.
    """
    if server_prompt_tokens == target_tokens:
        return LengthCheck(LengthVerdict.OK)
    difference = server_prompt_tokens - target_tokens
    text = f"the server counted {server_prompt_tokens} prompt tokens, {difference:+d} from {target_tokens}"
    if difference < 0 and cached_tokens:
        reason = f"{text}, with {cached_tokens} from its cache: flush the cache and repeat"
        return LengthCheck(LengthVerdict.RECHECK_COLD, reason)
    return LengthCheck(LengthVerdict.INVALID, text)


def check_completion_tokens(
    max_new_tokens: int, completion_tokens: int, finish_reason: str | None, ignore_eos: bool
) -> LengthCheck:
    """Whether a reply is as long as it should be.

    The server cuts `max_new_tokens` silently where context length or KV pool leave less room; the reply then
    ends for `length` with fewer tokens than asked for.
    """
    text = f"{completion_tokens} tokens came back, {max_new_tokens} were asked for"
    if completion_tokens > max_new_tokens or completion_tokens < 1:
        return LengthCheck(LengthVerdict.INVALID, text)
    if completion_tokens < max_new_tokens and (ignore_eos or finish_reason == "length"):
        return LengthCheck(LengthVerdict.INVALID, f"{text}: the server cut the reply")
    return LengthCheck(LengthVerdict.OK)
