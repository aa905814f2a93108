"""Conditional acceptance by draft position, with Wilson score intervals.

Source: equation 4 of the paper: alpha_j = sum_{n>=j} H[n] / sum_{n>=j-1} H[n] and
AL = 1 + sum_j prod_{k<=j} alpha_k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_Z95 = 1.959963984540054


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % Wilson score interval of a proportion; (NaN, NaN) without trials.

    Source: E. B. Wilson, JASA 22 (1927). Exactly 0 at no success and exactly 1 at no failure.

    Raises:
        ValueError: counts that are not whole, negative, or more successes than trials.
    """
    for value in (successes, trials):
        if isinstance(value, bool) or not math.isfinite(value) or value != int(value):
            raise ValueError(f"counts must be whole numbers, not {successes!r} of {trials!r}")
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials is impossible")
    if trials == 0:
        return math.nan, math.nan
    share, z2 = successes / trials, _Z95 * _Z95
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return low, high


@dataclass(frozen=True)
class PositionAcceptance:
    """alpha_j: of `reached` steps that accepted the first j - 1 drafts, `accepted` took draft j too.

    `alpha` is None where no step reached the position. `low`/`high` are the Wilson interval over steps;
    `request_low`/`request_high` a bootstrap over requests where there are several (steps of one request are
    correlated, so Wilson alone is too narrow), else None.
    """

    position: int
    accepted: int
    reached: int
    alpha: float | None
    low: float | None
    high: float | None
    request_low: float | None = None
    request_high: float | None = None


def conditional_acceptance(histograms: Sequence[Sequence[int]]) -> list[PositionAcceptance]:
    """alpha_1 ... alpha_gamma from the accept histograms of one or more requests (equal lengths, d bins).

    Raises:
        ValueError: histograms of different lengths, or a negative count.
    """
    if not histograms:
        return []
    if len({len(h) for h in histograms}) != 1:
        raise ValueError("histograms of different depths cannot be pooled")
    counts = np.asarray(histograms, dtype=np.int64)
    if (counts < 0).any():
        raise ValueError("a histogram holds a negative count")
    # at_least[r, j] = sum_{n>=j} H_r[n]
    at_least = counts[:, ::-1].cumsum(axis=1)[:, ::-1]
    spread = _request_bootstrap(at_least)
    rows = []
    for j in range(1, counts.shape[1]):
        accepted, reached = int(at_least[:, j].sum()), int(at_least[:, j - 1].sum())
        if reached == 0:
            rows.append(PositionAcceptance(j, 0, 0, None, None, None))
            continue
        low, high = wilson(accepted, reached)
        request = spread[j - 1] if spread is not None else (None, None)
        rows.append(PositionAcceptance(j, accepted, reached, accepted / reached, low, high, *request))
    return rows


def acceptance_length(rows: Sequence[PositionAcceptance]) -> float:
    """AL = 1 + sum_j prod_{k<=j} alpha_k; positions never reached add nothing."""
    total, product = 1.0, 1.0
    for row in rows:
        product *= row.alpha or 0.0
        total += product
    return total


def _request_bootstrap(at_least: np.ndarray) -> list[tuple[float | None, float | None]] | None:
    """95 % percentile interval of each alpha_j over resampled requests; None below 3 requests."""
    requests = at_least.shape[0]
    if requests < 3:
        return None
    rng = np.random.Generator(np.random.PCG64(requests))
    sums = at_least[rng.integers(0, requests, size=(1000, requests))].sum(axis=1)
    found: list[tuple[float | None, float | None]] = []
    for j in range(1, at_least.shape[1]):
        reached = sums[:, j - 1]
        shares = sums[reached > 0, j] / reached[reached > 0]
        if shares.size < sums.shape[0] // 2:
            found.append((None, None))
        else:
            found.append((float(np.quantile(shares, 0.025)), float(np.quantile(shares, 0.975))))
    return found
