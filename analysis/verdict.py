"""What the checks of a record say, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.printable import printable

Severity = Literal["invalid", "acceptance", "note"]

OTHER_POINT = frozenset((
    "prompt_length", "other_server", "other_machine", "other_context", "other_prompt", "no_speculation",
    "speculated", "length_above_depth",
))  # fmt: skip
"""Codes of a record that is of something else than its point: its outputs count no more than its times."""


@dataclass(frozen=True)
class Reason:
    """One finding.

    `severity`: `invalid` = the record is no measurement and enters no average; `acceptance` = step times
    stand but acceptance length and TPOT are inflated, so they are kept out of averages where other runs
    exist and marked where not; `note` = shown only.
    """

    code: str
    text: str
    severity: Severity = "invalid"


@dataclass(frozen=True)
class Verdict:
    """All findings on one record."""

    reasons: tuple[Reason, ...]

    def _of(self, severity: Severity) -> list[Reason]:
        return [reason for reason in self.reasons if reason.severity == severity]

    @property
    def valid(self) -> bool:
        """The record may enter averages of step time."""
        return not self._of("invalid")

    @property
    def of_point(self) -> bool:
        """What was measured is the point, well or badly: its outputs may be compared."""
        return not any(reason.code in OTHER_POINT for reason in self.reasons)

    @property
    def acceptance_valid(self) -> bool:
        """Acceptance length and TPOT may enter averages too."""
        return self.valid and not self._of("acceptance")

    @property
    def label(self) -> str:
        """`ok`, `invalid:code`, or `flagged:code`, by the first reason."""
        for severity, word in (("invalid", "invalid"), ("acceptance", "flagged")):
            found = self._of(severity)  # type: ignore[arg-type]
            if found:
                return f"{word}:{found[0].code}"
        return "ok"

    @property
    def text(self) -> str:
        """All reasons in one line, gravest first; empty when there is none."""
        order = ("invalid", "acceptance", "note")
        return "; ".join(
            printable(r.text) for r in sorted(self.reasons, key=lambda r: order.index(r.severity))
        )
