"""Tables as data: rows of measured values, each with its interval, the paper's value and a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from analysis.estimators import Estimate
from analysis.paper import Claim
from analysis.study import Pooled
from harness.printable import printable

if TYPE_CHECKING:
    import pandas as pd

INSIDE, OUTSIDE = "inside the paper's range", "outside the paper's range"
NO_PAPER, NOT_MEASURED = "no paper value", "not measured here"


@dataclass(frozen=True)
class Value:
    """One measured quantity. `note` says why there is none; `flag` marks a doubtful one."""

    estimate: Estimate | None
    claim: Claim | None = None
    note: str = ""
    flag: str = ""

    @property
    def verdict(self) -> str:
        """Against the paper: the interval (or the bare value) must touch the accepted range."""
        if self.estimate is None or not math.isfinite(self.estimate.value):
            return self.note or NOT_MEASURED
        if self.claim is None:
            return NO_PAPER
        value = self.estimate
        low = value.low if math.isfinite(value.low) else value.value
        high = value.high if math.isfinite(value.high) else value.value
        accepted = self.claim.accepted
        return INSIDE if low <= accepted[1] and high >= accepted[0] else OUTSIDE

    def text(self, digits: int = 2) -> str:
        """`4.51 [4.40, 4.62]` and what the paper says."""
        if self.estimate is None or not math.isfinite(self.estimate.value):
            text = self.note or NOT_MEASURED
        else:
            text = f"{self.estimate.value:.{digits}f}"
            if math.isfinite(self.estimate.low) and math.isfinite(self.estimate.high):
                text += f" [{self.estimate.low:.{digits}f}, {self.estimate.high:.{digits}f}]"
            if self.flag:
                text += f" ({self.flag})"
        if self.claim is not None:
            short = {INSIDE: ", inside", OUTSIDE: ", outside"}.get(self.verdict, "")
            text += f" (paper {self.claim.text}{short})"
        return text


Content = Value | str | int | None


@dataclass(frozen=True)
class Column:
    """A column; `digits` are decimals of its values."""

    name: str
    title: str
    digits: int = 2


SITE_COLUMNS = (Column("model", "model"), Column("hardware", "hardware"), Column("context_tokens", "S"))
"""What tells the rows of most tables apart first."""


@dataclass
class Table:
    """A named table. `header` lines stand above it in every rendering."""

    name: str
    title: str
    columns: Sequence[Column]
    header: list[str] = field(default_factory=list)
    rows: list[dict[str, Content]] = field(default_factory=list)

    def add(self, **row: Content) -> None:
        """Append a row; a column it leaves out stays empty.

        Raises:
            KeyError: a name that is no column.
        """
        unknown = set(row) - {column.name for column in self.columns}
        if unknown:
            raise KeyError(f"{self.name} has no column {sorted(unknown)}")
        self.rows.append(row)

    def cells(self) -> Iterator[list[str]]:
        """The rows as text."""
        for row in self.rows:
            yield [_text(row.get(column.name), column.digits) for column in self.columns]

    def frame(self) -> pd.DataFrame:
        """One row a table row; a value column x spreads into x, x_low, x_high, x_n, x_paper_low,
        x_paper_high, x_verdict and x_flag."""
        import pandas as pd  # noqa: PLC0415

        valued = {c.name for c in self.columns for row in self.rows if isinstance(row.get(c.name), Value)}
        out: list[dict[str, Any]] = []
        for row in self.rows:
            flat: dict[str, Any] = {}
            for column in self.columns:
                content = row.get(column.name)
                if column.name in valued:
                    flat |= _flat(column.name, content if isinstance(content, Value) else None)
                else:
                    flat[column.name] = printable(content) if isinstance(content, str) else content
            out.append(flat)
        return pd.DataFrame(out, columns=list(out[0]) if out else [c.name for c in self.columns])


def _text(content: Content, digits: int) -> str:
    if isinstance(content, Value):
        return printable(content.text(digits))
    return "" if content is None else f"{content:,}" if isinstance(content, int) else printable(content)


def _flat(name: str, value: Value | None) -> dict[str, Any]:
    nan = float("nan")
    estimate = (value.estimate if value else None) or Estimate(nan)
    said = value.claim if value else None
    return {
        name: estimate.value,
        f"{name}_low": estimate.low,
        f"{name}_high": estimate.high,
        f"{name}_n": estimate.n,
        f"{name}_paper_low": said.low if said else nan,
        f"{name}_paper_high": said.high if said else nan,
        f"{name}_verdict": printable(value.verdict) if value else "",
        f"{name}_flag": printable(value.flag) if value else "",
    }


def valued(found: Pooled, said: Claim | None = None) -> Value:
    """A pooled average as a table value."""
    return Value(found.estimate, said, found.note, found.flag)


def as_ratio(said: Claim | None) -> Claim | None:
    """A claim in percent faster, as a ratio."""
    if said is None:
        return None
    return replace(said, low=1 + said.low / 100, high=1 + said.high / 100, unit="ratio")


RATIO_NOTE = "Ratios are times: native / arm above 1 means the arm is faster. Brackets: 95 % intervals."
