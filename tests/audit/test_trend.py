"""The trend against scipy and matrix algebra, and the test's false alarms by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedwarden.audit.trend import departure, forecast
from fedwarden.core.stats import spent_level


@pytest.mark.parametrize("m", [3, 5, 9])
def test_the_forecast_is_that_of_a_linear_regression(m):
    past = np.random.default_rng(m).normal(size=m)
    line = stats.linregress(np.arange(m), past)
    found = forecast(past)
    residual = past - line.intercept - line.slope * np.arange(m)
    assert found.expected == pytest.approx(line.intercept + line.slope * m)
    assert found.deviation == pytest.approx(math.sqrt((residual**2).sum() / (m - 2)))
    design, ahead = np.stack([np.ones(m), np.arange(m)], axis=1), np.array([1.0, m])
    assert found.widening == pytest.approx(math.sqrt(1 + ahead @ np.linalg.inv(design.T @ design) @ ahead))
    assert found.freedom == m - 2


@given(st.floats(-1e6, 1e6), st.floats(-1e3, 1e3), st.integers(3, 12))
def test_a_straight_line_has_no_residual(a, b, m):
    line = a + b * np.arange(m + 1)
    found = departure(line[-1], line[:-1])
    assert found.divergence == pytest.approx(0.0, abs=1e-9 * (1 + np.abs(line).max()))
    assert abs(found.score) < 0.01
    assert found.p > 0.9


def test_a_short_past_gives_what_it_can():
    nothing = departure(1.0, np.array([]))
    assert all(math.isnan(v) for v in nothing)
    once = departure(3.0, np.array([2.0]))
    assert (once.expected, once.divergence, once.relative) == (2.0, 1.0, 0.5)
    twice = departure(3.0, np.array([1.0, 2.0]))
    assert (twice.expected, twice.divergence) == (3.0, 0.0)
    for found in (once, twice):
        assert math.isnan(found.score)
        assert math.isnan(found.p)


def test_zeros_are_no_news_and_what_follows_them_is():
    assert departure(0.0, np.zeros(5))[3:] == (0.0, 1.0)
    assert departure(-1.0, np.zeros(5))[3:] == (-math.inf, 0.0)


def test_one_sample_more_is_no_news_for_a_count():
    steady = np.full(5, 0.9)
    assert departure(0.905, steady).p < 1e-9
    assert departure(0.905, steady, floor=0.005).score == pytest.approx(1.0)
    assert departure(0.905, steady, floor=0.005).p > 0.4


def test_a_value_that_is_not_a_number_is_not_significant():
    assert math.isnan(departure(math.nan, np.arange(5.0)).p)


def test_the_p_value_is_uniform_under_a_noisy_trend():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(3000, 6))
    runs = 7.0 - 0.3 * np.arange(6) + 2.0 * noise
    p = [departure(run[-1], run[:-1]).p for run in runs]
    assert stats.kstest(p, "uniform").pvalue > 0.01


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_a_run_gives_a_false_alarm_with_probability_at_most_alpha(alpha):
    rng, runs, rounds, window = np.random.default_rng(1), 1500, 25, 5
    alarms = 0
    for _ in range(runs):
        series = 1.0 + 0.5 * np.arange(rounds) + rng.normal(size=rounds)
        pasts = [series[max(t - window, 0) : t] for t in range(3, rounds)]
        p = [departure(series[t], past).p for t, past in zip(range(3, rounds), pasts, strict=True)]
        alarms += any(value <= spent_level(alpha, i + 1) for i, value in enumerate(p))
    assert stats.binomtest(alarms, runs, alpha, alternative="greater").pvalue > 0.001
    assert alarms > 0.3 * alpha * runs  # the level is used, not wasted
