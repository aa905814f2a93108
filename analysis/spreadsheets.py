"""Texts of records in CSV: a spreadsheet would run one like a formula, a reader cut one at `#`."""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r")
# A lone dash for an empty cell, and signed numbers with their words: -0.2 [-0.4, 0.1], +4.00 ms (BIC 87). No
# function call and none of the signs that reach other programs or files.
_NUMBERS = re.compile(r"-|[-+][0-9.](?!.*\w\()[\w .,%\[\]()+-]*")


def no_formula(value: T) -> T | str:
    """A text that begins like a formula, with an apostrophe before it; numbers and other texts unchanged."""
    if isinstance(value, str) and value.startswith(_BEGINNINGS) and not _NUMBERS.fullmatch(value):
        return f"'{value}"
    return value


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame whose texts no spreadsheet takes for formulas."""
    texts = frame.select_dtypes(include=["object", "string"])
    return frame.assign(**{str(name): texts[name].map(no_formula) for name in texts})


def to_csv(frame: pd.DataFrame, float_format: str | None = None) -> str:
    """A frame as CSV that loses nothing where its reader takes lines after `#` for comments.

    A `#` within quotes begins no comment: where a text holds one, all texts are quoted.
    """

    def text(quoting: Literal[0, 2]) -> str:
        return str(safe.to_csv(index=False, float_format=float_format, lineterminator="\n", quoting=quoting))

    safe = without_formulas(frame)
    plain = text(csv.QUOTE_MINIMAL)
    return text(csv.QUOTE_NONNUMERIC) if "#" in plain else plain
