"""Draft budgets compared by what they deliver.

The accept rate has the budget in its denominator: it falls as drafts get longer even where they pay, so it
never ranks anything here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Counts of one run. `depth` is d, drafts a step are d - 1."""

    depth: int
    verify_steps: int
    correct_drafts: int
    completion_tokens: int
    wall_s: float

    @property
    def accept_length(self) -> float:
        """1 + correct / verify."""
        return 1 + self.correct_drafts / self.verify_steps if self.verify_steps else float("nan")

    @property
    def accept_rate(self) -> float:
        """correct / proposed."""
        proposed = self.verify_steps * (self.depth - 1)
        return self.correct_drafts / proposed if proposed else float("nan")

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the answer a second of wall time."""
        return self.completion_tokens / self.wall_s if self.wall_s > 0 else float("nan")


def best_budget(budgets: Sequence[Budget]) -> Budget:
    """The fastest; among equally fast ones the longest acceptance.

    Raises:
        ValueError: nothing to choose from.
    """
    return max(budgets, key=lambda b: (b.tokens_per_s, b.accept_length))
