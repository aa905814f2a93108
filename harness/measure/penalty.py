"""Does this server apply a sampling penalty as its rule says? Asked from outside, by log probabilities.

A repetition penalty p divides the logit of every token that the output already holds by p (multiplies it
where it is negative); a frequency penalty f subtracts f for each time. Log probabilities of the same output
are read twice: while it is generated with the penalty, and once more as a prompt, where no penalty exists.
Tokens that the output never holds shift alike between the two; a penalised token falls below them, a token
that the server forgot does not. Three short requests tell, on any server and any arm.

How far a token must fall under a repetition penalty depends on its logit z, and log probabilities give z less
a constant c of the position. c is the one on which most of the fallen tokens agree; a token whose z is too
near 0 to fall visibly is not judged.

The rule covers every token generated so far. SGLang 0.5.23 itself calls its form under speculation relaxed:
after a verify only the last of its tokens enters the history, and all positions of a verify share the history
from before it. How much that leaves out depends on what is accepted, so it is measured and not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import ServerError

PROMPT_TOKENS = 256
NEW_TOKENS = 96
_REFERENCES = 24
# Of the robust spread of the reference tokens' shifts; and the least fall that counts, in logits.
_SPREADS, _LEAST_SHIFT = 6.0, 0.02
_NEARLY_ALL = 0.98
# Positions with fewer earlier tokens are left out: nothing could agree on the constant.
_LEAST_SEEN = 3

Ask = Callable[[Sequence[Sequence[int]], dict[str, Any], dict[str, Any]], list[dict[str, Any]]]
"""Sends prompts with sampling parameters and further fields of the request; returns the replies."""


class Penalty(StrEnum):
    """What a server does with a penalty."""

    HONOURED = "honoured"
    LATE = "late"  # all but the tokens of the latest step
    WEAKENED = "weakened"
    IGNORED = "ignored"
    NOT_EXERCISED = "not exercised"  # no draft was accepted: nothing could be left out
    UNKNOWN = "unknown"  # the server did not answer what was asked


@dataclass(frozen=True)
class Audit:
    """What came out of one audit.

    Attributes:
        state: the verdict over all judged places.
        tokens: output tokens that were looked at.
        accepted_drafts: drafts the server accepted meanwhile; None without speculation.
        judged: (position, token) pairs where the rule asks for a penalty.
        penalised: those of them whose logit fell.
        judged_latest: pairs whose token appeared within the last `reach` tokens only.
        missed_latest: those of them left out: what a penalty that lags one step behind misses.
        reach: most tokens of one step.
    """

    state: Penalty
    tokens: int
    accepted_drafts: int | None
    judged: int
    penalised: int
    judged_latest: int
    missed_latest: int
    reach: int

    def as_dict(self, **asked: float) -> dict[str, Any]:
        """For `record.extras`, with the penalty that was asked for."""
        return {**asdict(self), "state": str(self.state), **asked}


def audit(
    ask: Ask,
    prompt_ids: Sequence[int],
    penalty: Mapping[str, float],
    depth: int,
    speculative: bool,
    new_tokens: int = NEW_TOKENS,
) -> Audit:
    """Generate with a penalty, score the same output without, and compare. Three short requests.

    Args:
        prompt_ids: any text; its first `PROMPT_TOKENS` are used.
        penalty: `{"repetition_penalty": p}` or `{"frequency_penalty": f}`.
        depth: most tokens of one step.
        speculative: whether the server drafts.
        new_tokens: length of the output; prompt and output together must be a prompt the server takes.

    Raises:
        ServerError: the server refused a request, or gave no log probabilities.
    """
    prompt = list(prompt_ids[:PROMPT_TOKENS])
    sampling = {"temperature": 0.0, "max_new_tokens": new_tokens, "ignore_eos": True, **penalty}
    first = ask([prompt], sampling, {"return_logprob": True, "top_logprobs_num": 8})[0]
    # One list of tokens a request.
    wanted = {"return_logprob": True, "token_ids_logprob": [_tokens_to_ask(first, prompt)]}
    reply = ask([prompt], sampling, wanted)[0]
    output = [int(token) for token in reply["output_ids"]]
    plain = {"temperature": 0.0, "max_new_tokens": 1, "ignore_eos": True}
    scored = ask([prompt + output], plain, {**wanted, "logprob_start_len": len(prompt) - 1})[0]
    while_generating = _columns(reply, "output_token_ids_logprobs")
    as_prompt = _columns(scored, "input_token_ids_logprobs")[-len(output) :]
    accepted = reply["meta_info"].get("spec_num_correct_drafts")
    return judge(
        output,
        while_generating,
        as_prompt,
        repetition=float(penalty.get("repetition_penalty", 1.0)),
        frequency=float(penalty.get("frequency_penalty", 0.0)),
        accepted_drafts=int(accepted) if speculative and accepted is not None else None,
        speculative=speculative,
        reach=depth if speculative else 1,
    )


def judge(
    output: Sequence[int],
    while_generating: Sequence[Mapping[int, float]],
    as_prompt: Sequence[Mapping[int, float]],
    *,
    repetition: float = 1.0,
    frequency: float = 0.0,
    accepted_drafts: int | None = None,
    speculative: bool = False,
    reach: int = 1,
) -> Audit:
    """Judge an output from the log probabilities of chosen tokens at each of its positions.

    Args:
        output: the generated ids, n of them.
        while_generating: n mappings token -> log probability as generated, penalty included.
        as_prompt: n mappings of the same tokens without penalty.
        repetition, frequency: the penalty; 1 and 0 for none. One of them is judged, not both together.
        reach: most tokens of one step, for `missed_latest`.
    """
    ever = set(output)
    judged = penalised = latest = missed = 0
    counts: dict[int, int] = {}
    for position, token in enumerate(output):
        now, plain = while_generating[position], as_prompt[position]
        shifts = {t: now[t] - plain[t] for t in now.keys() & plain.keys()}
        level, spread = _level([shift for t, shift in shifts.items() if t not in ever])
        seen = [t for t in counts if t in shifts]
        if level is not None and len(seen) >= _LEAST_SEEN:
            # A penalty below 1 raises tokens.
            falls = np.array([level - shifts[t] for t in seen]) * (1 if repetition >= 1 else -1)
            tolerance = max(_LEAST_SHIFT, _SPREADS * spread)
            if frequency:
                # Each appearance must count: half of one short is one too few.
                due = frequency * np.array([counts[t] for t in seen])
                fell = falls > due - frequency / 2
            else:
                due = _due(falls, np.array([plain[t] for t in seen]), repetition, tolerance)
                fell = falls > due / 2
            for t, visible, found in zip(seen, due > 2 * tolerance, fell, strict=True):
                judged += bool(visible)
                penalised += bool(visible and found)
                recent = output[max(0, position - reach) : position].count(t)
                latest += bool(visible and counts[t] == recent)
                missed += bool(visible and not found and counts[t] == recent)
        counts[token] = counts.get(token, 0) + 1
    state = _state(judged, penalised, latest, missed, accepted_drafts if speculative else 1)
    return Audit(state, len(output), accepted_drafts, judged, penalised, latest, missed, reach)


def _due(
    falls: NDArray[np.float64], plain: NDArray[np.float64], repetition: float, tolerance: float
) -> NDArray[np.float64]:
    """How far each token falls under the rule, from log probabilities `plain` and what was seen to fall.

    With z = plain + c a token falls by z (1 - 1/p) where z > 0, and by -z (p - 1) where z < 0. Every fallen
    token proposes the c of either case; the c that explains most of them is taken. Where none fell, nothing
    is known of the logits, and every token counts as one that should have fallen far.
    """
    above, below = abs(1 - 1 / repetition), abs(repetition - 1)
    fallen = falls > tolerance
    if not fallen.any():
        return np.full(falls.shape, np.inf)
    proposed = np.concatenate([falls[fallen] / above - plain[fallen], -falls[fallen] / below - plain[fallen]])
    z = plain[None, :] + proposed[:, None]
    due = np.where(z > 0, z * above, -z * below)
    support = (np.abs(due[:, fallen] - falls[fallen]) < tolerance).sum(axis=1)
    return np.asarray(due[int(support.argmax())])


def _state(judged: int, penalised: int, latest: int, missed: int, accepted: int | None) -> Penalty:
    if not judged or not accepted:
        return Penalty.NOT_EXERCISED
    if penalised + missed >= _NEARLY_ALL * judged and 2 * missed > latest > 0:
        return Penalty.LATE
    if penalised >= _NEARLY_ALL * judged:
        return Penalty.HONOURED
    return Penalty.IGNORED if penalised <= (1 - _NEARLY_ALL) * judged else Penalty.WEAKENED


def _level(shifts: Iterable[float]) -> tuple[float | None, float]:
    """Median shift of the reference tokens and its robust standard deviation (1.4826 MAD)."""
    known = sorted(shifts)
    if len(known) < 3:
        return None, 0.0
    level = median(known)
    return level, 1.4826 * median(abs(shift - level) for shift in known)


def _tokens_to_ask(reply: Mapping[str, Any], prompt: Sequence[int]) -> list[int]:
    """The output's distinct tokens, and as references the commonest candidates that it never chose.

    Tokens of the prompt make up the number: the penalties here are for what was generated.
    """
    output = {int(token) for token in reply["output_ids"]}
    votes: dict[int, int] = {}
    for candidates in reply["meta_info"].get("output_top_logprobs") or ():
        for entry in candidates or ():
            votes[int(entry[1])] = votes.get(int(entry[1]), 0) + 1
    others = sorted((t for t in votes if t not in output), key=lambda t: (-votes[t], t))
    others += sorted(set(prompt) - output - set(others))
    return [*sorted(output), *others[:_REFERENCES]]


def _columns(reply: Mapping[str, Any], name: str) -> list[dict[int, float]]:
    rows = reply["meta_info"].get(name)
    if not rows:
        raise ServerError(f"the server gave no {name}: penalties cannot be checked", "request_error")
    return [{int(e[1]): float(e[0]) for e in row or () if e[0] is not None} for row in rows]
