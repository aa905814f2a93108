"""Texts of records in files that spreadsheets open: a cell that begins like a formula would be run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

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
