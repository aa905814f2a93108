"""Wilson, alpha_j, Pareto, ratios, budgets, fits and steady state: cases and properties."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.acceptance import acceptance_length, conditional_acceptance, wilson
from analysis.budget import Budget, best_budget
from analysis.estimators import Estimate, effective_batch, histogram_length, steady_steps
from analysis.fit import STEP_BIC_THRESHOLD, decompose, detect_step, fit_after_step, fit_line
from analysis.pareto import pareto
from analysis.speedup import split_ratio, win_column, win_percent
from harness.records import DecodeSteps

DATA = Path(__file__).resolve().parent.parent / "data" / "analysis"


def table(name: str) -> list[dict[str, str]]:
    with (DATA / name).open() as file:
        return list(csv.DictReader(file))


# -- Wilson ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", table("wilson.csv"), ids=lambda r: f"{r['successes']}of{r['trials']}")
def test_wilson_cases(row: dict[str, str]) -> None:
    found = wilson(int(row["successes"]), int(row["trials"]))
    wanted = [float(row[end]) if row[end] else math.nan for end in ("low", "high")]
    assert found == pytest.approx(wanted, abs=1e-6, nan_ok=True)


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys_and_clamped(counts: tuple[int, int]) -> None:
    k, n = counts
    low, high = wilson(k, n)
    known = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert (low, high) == pytest.approx((known.low, known.high), abs=1e-9)
    assert 0 <= low <= k / n <= high <= 1
    assert k > 0 or low == 0.0
    assert k < n or high == 1.0
    assert wilson(n - k, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@pytest.mark.parametrize(
    "counts", [(3, 2), (-1, 5), (1, -1), (math.nan, 5), (2, math.nan), (1.5, 3), (True, 2)]
)
def test_wilson_refuses_impossible_counts(counts: tuple[float, float]) -> None:
    with pytest.raises(ValueError):
        wilson(*counts)  # type: ignore[arg-type]


# -- conditional acceptance --------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(any))
def test_alpha_rebuilds_the_acceptance_length(histogram: list[int]) -> None:
    rows = conditional_acceptance([histogram])
    assert acceptance_length(rows) == pytest.approx(histogram_length(histogram))
    for row in rows:
        assert (row.alpha is None) == (row.reached == 0), "a position that no step reached is empty, not zero"


def test_unreached_positions_are_empty() -> None:
    rows = conditional_acceptance([[3, 2, 0, 0]])
    assert [(r.accepted, r.reached) for r in rows] == [(2, 5), (0, 2), (0, 0)]
    assert rows[1].alpha == 0.0 and rows[2].alpha is None


def test_bootstrap_over_requests_is_wider_than_wilson_when_requests_differ() -> None:
    rows = conditional_acceptance([[90, 10]] * 3 + [[10, 90]] * 3)
    assert rows[0].request_low is not None and rows[0].request_high is not None
    assert rows[0].high is not None and rows[0].low is not None
    assert rows[0].request_high - rows[0].request_low > 2 * (rows[0].high - rows[0].low)


# -- Pareto ------------------------------------------------------------------------------------------------


def test_pareto_case() -> None:
    rows = table("pareto.csv")
    found = pareto((r["name"], float(r["user"]), float(r["gpu"])) for r in rows)
    for kind in ("frontier", "dominated", "excluded"):
        assert getattr(found, kind) == tuple(r["name"] for r in rows if r["expected"] == kind)


COORDINATE = st.one_of(st.integers(0, 6).map(float), st.just(math.nan))


@given(st.lists(st.tuples(COORDINATE, COORDINATE), max_size=30))
def test_pareto_is_the_definition(points: list[tuple[float, float]]) -> None:
    found = pareto((i, x, y) for i, (x, y) in enumerate(points))
    assert sorted(found.frontier + found.dominated + found.excluded) == list(range(len(points)))
    finite = [(x, y) for x, y in points if not (math.isnan(x) or math.isnan(y))]
    for i, (x, y) in enumerate(points):
        beaten = any(a >= x and b >= y and (a > x or b > y) for a, b in finite)
        if i in found.excluded:
            assert math.isnan(x) or math.isnan(y)
        else:
            assert (i in found.dominated) == beaten


# -- ratios and budgets ------------------------------------------------------------------------------------


def test_win_percent_case() -> None:
    rows = table("win_percent.csv")
    found = win_column(
        (r["name"], *(float(r[c]) if r[c] else None for c in ("native_ms", "windowed_ms"))) for r in rows
    )
    assert found.percent == {r["name"]: float(r["percent"]) for r in rows if r["percent"]}
    assert found.undefined == tuple(r["name"] for r in rows if not r["percent"])


@given(st.floats(0.1, 1e6), st.floats(0.1, 1e6))
def test_a_percentage_read_backwards_is_not_its_negative(a: float, b: float) -> None:
    there, back = win_percent(a, b), win_percent(b, a)
    assert there is not None and back is not None
    assert (1 + there / 100) * (1 + back / 100) == pytest.approx(1)


@given(*[st.floats(0.5, 100)] * 4)
def test_equation_3(native: float, windowed: float, al_native: float, al_windowed: float) -> None:
    found = split_ratio(native, windowed, al_native, al_windowed)
    assert found.end_to_end == pytest.approx((native / al_native) / (windowed / al_windowed))


def test_budgets_are_ranked_by_speed_not_by_rate() -> None:
    rows = table("budgets.csv")
    names = ("depth", "verify_steps", "correct_drafts", "completion_tokens")
    budgets = [Budget(**{n: int(r[n]) for n in names}, wall_s=float(r["wall_s"])) for r in rows]
    for budget, row in zip(budgets, rows, strict=True):
        for name in ("accept_length", "accept_rate", "tokens_per_s"):
            assert getattr(budget, name) == pytest.approx(float(row[name]), abs=0.005)
    assert best_budget(budgets).depth == 8
    assert max(budgets, key=lambda b: b.accept_rate).depth == 2, "the rate would choose the slowest"


# -- fits --------------------------------------------------------------------------------------------------


@given(st.floats(0.1, 5), st.floats(1, 50), st.integers(3, 8), st.integers(0, 99))
def test_fit_is_scipys(slope: float, intercept: float, n: int, seed: int) -> None:
    x = list(range(1, n + 1))
    y = slope * np.array(x) + intercept + 0.1 * np.random.default_rng(seed).standard_normal(n)
    found, known = fit_line(x, y.tolist()), stats.linregress(x, y)
    assert found.slope_ms.value == pytest.approx(known.slope)
    assert found.intercept_ms.value == pytest.approx(known.intercept)
    assert found.r_squared == pytest.approx(known.rvalue**2, abs=1e-9)
    quantile = stats.t.ppf(0.975, n - 2)
    assert found.slope_ms.high - found.slope_ms.value == pytest.approx(quantile * known.stderr, rel=1e-6)
    half = found.intercept_ms.high - found.intercept_ms.value
    assert half == pytest.approx(quantile * known.intercept_stderr, rel=1e-6)


def test_two_points_claim_no_error() -> None:
    found = fit_line([2, 4], [10.0, 14.0])
    assert (found.slope_ms.value, found.intercept_ms.value) == (2.0, 6.0)
    assert math.isnan(found.slope_ms.low) and math.isnan(found.r_squared)


@pytest.mark.parametrize(("x", "y"), [([3], [1.0]), ([3, 3], [1.0, 2.0]), ([1, 2], [1.0, math.nan])])
def test_no_line_through_too_little(x: list[int], y: list[float]) -> None:
    with pytest.raises(ValueError):
        fit_line(x, y)


@pytest.mark.parametrize("split", [3, 4, 5, 6])
def test_a_one_time_step_is_found_where_it_is(split: int) -> None:
    x = list(range(1, 9))
    noise = 0.02 * np.random.default_rng(split).standard_normal(8)
    y = [1.2 * g + 15 + (6.0 if g >= split else 0.0) + e for g, e in zip(x, noise, strict=True)]
    found = detect_step(x, y)
    assert found is not None and found.gamma == split
    assert found.jump_ms == pytest.approx(6.0, abs=0.2)
    assert found.bic_gain > STEP_BIC_THRESHOLD
    after = fit_after_step(x, y, found)
    assert after.slope_ms.value == pytest.approx(1.2, abs=0.05)
    assert after.gammas == tuple(g for g in x if g >= split)


def test_plain_lines_rarely_show_a_step() -> None:
    x, rng = list(range(1, 9)), np.random.default_rng(0)
    lines = [(1.2 * np.array(x) + 15 + 0.1 * rng.standard_normal(8)).tolist() for _ in range(300)]
    assert sum(detect_step(x, y) is not None for y in lines) < 0.05 * 300
    assert detect_step(x, [1.2 * g + 15 for g in x]) is None
    assert detect_step([1, 2, 3, 4], [1.0, 2.0, 9.0, 10.0]) is None, "four points cannot show a step"


def test_decomposition_adds_up() -> None:
    native, ring = fit_line([4, 5, 6], [30.0, 31.2, 32.4]), fit_line([4, 5, 6], [22.8, 23.5, 24.2])
    found = decompose(native, ring, 6, 8.2)
    assert found.slope_drop_ms == pytest.approx(0.5)
    assert found.slope_drop_percent == pytest.approx(100 * 0.5 / 1.2)
    assert found.predicted_saving_ms == pytest.approx(8.2)


# -- steady state --------------------------------------------------------------------------------------------


def steps(
    running: list[int], throughput: list[float], length: list[float | None], resident: list[int | None]
) -> DecodeSteps:
    return DecodeSteps(
        time_s=[None] * len(running), running_requests=running, resident_tokens=resident,
        accept_length=length, throughput_tokens_per_s=throughput, queued_requests=[0] * len(running),
    )  # fmt: skip


def test_steady_lines_leave_out_the_first_two_the_empty_pool_and_outliers() -> None:
    found = steady_steps(
        steps(
            running=[1] * 9,
            throughput=[0.1, 1.0, 100.0, 50.0, 100.0, 100.0, 1.0, 50.0, 9e6],
            length=[2.0, 2.0, 2.0, 1.0, 2.0, 2.0, 2.0, 1.0, 2.0],
            resident=[10] * 8 + [0],
        ),
        requested_batch=1,
    )  # fmt: skip
    assert found is not None
    batch, times, lengths = found
    assert batch == 1
    assert times.tolist() == [20.0] * 5, "2000 ms at line 7 lies outside 0.4 to 2.5 medians"
    assert lengths.tolist() == [2.0, 1.0, 2.0, 2.0, 1.0]


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(5, 60), st.floats(2, 80), st.lists(st.integers(1, 7), min_size=1))
def test_step_time_does_not_depend_on_acceptance(
    batch: int, n: int, step_ms: float, accepted: list[int]
) -> None:
    lengths = [float(accepted[i % len(accepted)]) for i in range(n)]
    rates = [1000 * batch * a / step_ms for a in lengths]
    found = steady_steps(steps([batch] * n, rates, list(lengths), [5] * n), batch)
    assert found is not None
    assert found[0] == batch
    assert found[1] == pytest.approx(np.full(n - 2, step_ms))


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 4))
def test_effective_batch(running: list[int], asked: int) -> None:
    found = effective_batch(np.array(running, dtype=np.int64), asked)
    enough = [b for b in (1, 2, 3, 4) if running.count(b) >= 5]
    assert found == (asked if asked in enough else max(enough, default=None))


def test_no_acceptance_length_on_the_line_means_one() -> None:
    found = steady_steps(steps([1] * 7, [100.0] * 7, [None] * 7, [3] * 7), 1)
    assert found is not None and found[2].tolist() == [1.0] * 5


def test_ratio_of_estimates() -> None:
    ratio = Estimate(10, 9, 11, 50).ratio_to(Estimate(5, 5, 5, 60))
    assert ratio.value == 2 and ratio.low == pytest.approx(2 * math.sqrt(9 / 11)) and ratio.n == 50
    assert math.isnan(Estimate(1.0).ratio_to(Estimate(0.0)).value)
