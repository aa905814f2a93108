"""Speculation fields of a `/generate` reply, normalised over SGLang's releases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Oldest last: names changed in sglang#23530, #24081 and #25014.
_CORRECT = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
# Fewer steps than this cannot show that a draft head is dead.
MIN_STEPS_TO_JUDGE = 20


@dataclass(frozen=True)
class Speculation:
    """Counts of one request. None = the server did not say (never 0).

    `accept_length` = 1 + correct / verify (bonus token included); where only `completion_tokens` is known it
    is (completion - 1) / verify, `approximate` then being True: the first token comes from the prefill. It is
    None where the histogram contradicts the counts. `accept_rate` = correct / proposed.
    `problems` names identities that the counts break.
    """

    verify_steps: int | None
    correct_drafts: int | None
    proposed_drafts: int | None
    histogram: tuple[int, ...] | None
    accept_length: float | None
    accept_rate: float | None
    approximate: bool
    overshoot: int | None
    problems: tuple[str, ...]

    @property
    def drafter_dead(self) -> bool:
        """Not one draft was accepted over enough steps to say so: a head without trained weights."""
        return self.correct_drafts == 0 and (self.verify_steps or 0) >= MIN_STEPS_TO_JUDGE


def _first(meta: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((meta[n] for n in names if meta.get(n) is not None), None)


def read_speculation(meta: Mapping[str, Any], depth: int | None = None) -> Speculation:
    """Normalise one `meta_info`.

    Args:
        meta: as the server sent it.
        depth: d, the length the histogram is padded to (it is only as long as the best step seen).
    """
    verify, correct = meta.get("spec_verify_ct"), _first(meta, _CORRECT)
    proposed, raw = _first(meta, _PROPOSED), _first(meta, _HISTOGRAM)
    completion = meta.get("completion_tokens")
    problems: list[str] = []
    histogram = tuple(int(n) for n in raw) if raw is not None else None
    if correct is None and histogram is not None:
        correct = sum(n * count for n, count in enumerate(histogram))
    if histogram is not None:
        problems += _histogram_problems(histogram, verify, correct, depth)
        histogram = histogram + (0,) * ((depth or 0) - len(histogram))
    if proposed is not None and verify is not None and depth is not None and proposed != verify * (depth - 1):
        problems.append(f"proposed_mismatch: {proposed} is not {verify} steps x {depth - 1} drafts")
    accept_length, approximate, overshoot = None, False, None
    if verify:
        if correct is not None:
            accept_length = 1 + correct / verify
            if completion is not None:
                # The last step may emit past the length limit or the end token.
                overshoot = 1 + verify + correct - completion
                if overshoot < 0 or (depth is not None and overshoot > depth):
                    problems.append(f"token_count_mismatch: {overshoot} tokens emitted beyond the completion")
        elif completion is not None:
            accept_length, approximate = (completion - 1) / verify, True
    if any(problem.startswith("histogram_mismatch") for problem in problems):
        accept_length, approximate = None, False
    rate = correct / proposed if proposed and correct is not None else None
    return Speculation(
        verify, correct, proposed, histogram, accept_length, rate, approximate, overshoot, tuple(problems)
    )


def _histogram_problems(
    histogram: tuple[int, ...], verify: int | None, correct: int | None, depth: int | None
) -> list[str]:
    problems = []
    if verify is not None and sum(histogram) != verify:
        problems.append("histogram_mismatch: its sum is not the number of verify steps")
    elif verify is not None and sum(n * count for n, count in enumerate(histogram)) != correct:
        problems.append("histogram_mismatch: its weighted sum is not the number of correct drafts")
    if depth is not None and len(histogram) > depth:
        problems.append(f"histogram_mismatch: {len(histogram)} bins for at most {depth - 1} drafts")
    return problems
