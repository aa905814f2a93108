"""The latency model T_iter(gamma) = gamma t_fwd + c, and the one-time step inside it.

Source: equations 1 and 2 and appendix B of the paper; c = t_verify + t_ctx. The verify kernel may take a
one-time step at some gamma (a tiling boundary); it is detected, and the line is fitted after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.estimators import Estimate
from analysis.study import t_quantile

Floats = npt.NDArray[np.float64]

# BIC must fall by more than this ("very strong" evidence) before a step is believed.
STEP_BIC_THRESHOLD = 10.0
MIN_POINTS_FOR_STEP = 5


@dataclass(frozen=True)
class LatencyFit:
    """Ordinary least squares of step time on gamma.

    `slope_ms` is t_fwd per draft forward, `intercept_ms` is c. Their intervals are Student's t with n - 2
    degrees of freedom, NaN for two points, where a line has no error to speak of; so is `r_squared`.
    """

    gammas: tuple[int, ...]
    slope_ms: Estimate
    intercept_ms: Estimate
    r_squared: float
    residuals_ms: tuple[float, ...]

    def at(self, gamma: float) -> float:
        """The fitted step time in ms."""
        return self.slope_ms.value * gamma + self.intercept_ms.value


@dataclass(frozen=True)
class TimeStep:
    """A one-time jump: from `gamma` on every step costs `jump_ms` more. `bic_gain` is the evidence."""

    gamma: int
    jump_ms: float
    bic_gain: float


def fit_line(gammas: Sequence[int], step_ms: Sequence[float]) -> LatencyFit:
    """Fit the line.

    Raises:
        ValueError: fewer than two different gammas, or a value that is not finite.
    """
    x, y = np.asarray(gammas, dtype=np.float64), np.asarray(step_ms, dtype=np.float64)
    if x.size != y.size or np.unique(x).size < 2:
        raise ValueError("a line needs step times at two different gammas")
    if not np.isfinite(y).all():
        raise ValueError("step times must be finite")
    n, centre = x.size, x.mean()
    spread = float(((x - centre) ** 2).sum())
    slope = float(((x - centre) * (y - y.mean())).sum() / spread)
    intercept = float(y.mean() - slope * centre)
    residuals = y - (slope * x + intercept)
    total = float(((y - y.mean()) ** 2).sum())
    rss = float((residuals**2).sum())
    nan = float("nan")
    half_slope = half_intercept = r_squared = nan
    if n > 2:
        r_squared = 1 - rss / total if total > 0 else 1.0
        sigma = math.sqrt(rss / (n - 2))
        quantile = t_quantile(n - 2)
        half_slope = quantile * sigma / math.sqrt(spread)
        half_intercept = quantile * sigma * math.sqrt(1 / n + centre**2 / spread)
    return LatencyFit(
        tuple(int(g) for g in gammas),
        Estimate(slope, slope - half_slope, slope + half_slope, n),
        Estimate(intercept, intercept - half_intercept, intercept + half_intercept, n),
        r_squared,
        tuple(float(r) for r in residuals),
    )


def detect_step(gammas: Sequence[int], step_ms: Sequence[float]) -> TimeStep | None:
    """Compare one line with two of a common slope, over every split that leaves 2 points either side.

    The step's place counts as a parameter. None below 5 points or where BIC gains 10 or less.
    """
    order = np.argsort(gammas)
    x = np.asarray(gammas, dtype=np.float64)[order]
    y = np.asarray(step_ms, dtype=np.float64)[order]
    n = x.size
    if n < MIN_POINTS_FOR_STEP or np.unique(x).size < n:
        return None
    one = _bic(np.column_stack([np.ones(n), x]), y, parameters=2)
    best: TimeStep | None = None
    for split in range(2, n - 1):
        after = (np.arange(n) >= split).astype(np.float64)
        design = np.column_stack([np.ones(n), x, after])
        gain = one - _bic(design, y, parameters=4)
        if gain > (best.bic_gain if best else STEP_BIC_THRESHOLD):
            jump = float(np.linalg.lstsq(design, y, rcond=None)[0][2])
            best = TimeStep(int(x[split]), jump, float(gain))
    return best


def _bic(design: Floats, y: Floats, parameters: int) -> float:
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    rss = float(((y - design @ solution) ** 2).sum())
    # Timers do not resolve better than a ten-thousandth of a step; without a floor an exact line beats all.
    floor = y.size * (1e-4 * float(np.abs(y).mean())) ** 2
    return float(y.size * math.log(max(rss, floor, 1e-300) / y.size) + parameters * math.log(y.size))


def fit_after_step(gammas: Sequence[int], step_ms: Sequence[float], step: TimeStep | None) -> LatencyFit:
    """Fit on the regime after a step, or on everything where there is none."""
    kept = [i for i, g in enumerate(gammas) if step is None or g >= step.gamma]
    return fit_line([gammas[i] for i in kept], [step_ms[i] for i in kept])


@dataclass(frozen=True)
class Decomposition:
    """What windowing saves a step at one gamma: the parts of slope and intercept, and what was measured.

    delta = gamma (t_fwd native - t_fwd windowed) + (c native - c windowed), equation 2 of the paper.
    """

    gamma: int
    slope_drop_ms: float
    slope_drop_percent: float
    intercept_drop_ms: float
    predicted_saving_ms: float
    measured_saving_ms: float


def decompose(
    native: LatencyFit, windowed: LatencyFit, gamma: int, measured_saving_ms: float
) -> Decomposition:
    """Split the saving at `gamma`; `measured_saving_ms` is the directly measured one (NaN if not)."""
    slope = native.slope_ms.value - windowed.slope_ms.value
    intercept = native.intercept_ms.value - windowed.intercept_ms.value
    share = 100 * slope / native.slope_ms.value if native.slope_ms.value else float("nan")
    return Decomposition(gamma, slope, share, intercept, gamma * slope + intercept, measured_saving_ms)
