"""Ratios and percentages of times. A percentage is never time saved: 120 ms against 100 ms is +20 %.

The other way round is not the negative: 100 ms against 120 ms is -16.7 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


def ratio(native_ms: float | None, windowed_ms: float | None) -> float | None:
    """native / windowed of two times (lower is better); above 1 windowed is faster. None if undefined."""
    if native_ms is None or windowed_ms is None:
        return None
    if not (math.isfinite(native_ms) and math.isfinite(windowed_ms)) or windowed_ms <= 0 or native_ms < 0:
        return None
    return native_ms / windowed_ms


def win_percent(native_ms: float | None, windowed_ms: float | None) -> float | None:
    """(native / windowed - 1) x 100. None where undefined: a missing value, or no time at all."""
    found = ratio(native_ms, windowed_ms)
    return None if found is None else (found - 1) * 100


@dataclass(frozen=True)
class WinColumn:
    """Win percentages by name, one decimal, and the names that have none."""

    percent: dict[str, float]
    undefined: tuple[str, ...]


def win_column(rows: Iterable[tuple[str, float | None, float | None]]) -> WinColumn:
    """Percentages of (name, native time, windowed time) rows."""
    percent, undefined = {}, []
    for name, native, windowed in rows:
        value = win_percent(native, windowed)
        if value is None:
            undefined.append(name)
        else:
            percent[name] = round(value, 1)
    return WinColumn(percent, tuple(undefined))


@dataclass(frozen=True)
class CostAndAcceptance:
    """Equation 3: native / windowed TPOT = (step native / step windowed) x (AL windowed / AL native)."""

    end_to_end: float
    cost: float
    acceptance: float


def split_ratio(
    step_native_ms: float, step_windowed_ms: float, length_native: float, length_windowed: float
) -> CostAndAcceptance:
    """The two factors of an end-to-end ratio."""
    cost, acceptance = step_native_ms / step_windowed_ms, length_windowed / length_native
    return CostAndAcceptance(cost * acceptance, cost, acceptance)
