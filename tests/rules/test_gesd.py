"""Generalized ESD against Rosner's published table and a plain loop written from his paper."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.core.stats import spent_level
from fedwarden.rules.gesd import GESD, critical_value, gesd, gesd_threshold

# Rosner (1983), vitamin E data, as printed in the NIST/SEMATECH e-Handbook, section 1.3.5.17.3
VITAMIN_E = np.array(
    [
        -0.25, 0.68, 0.94, 1.15, 1.20, 1.26, 1.26, 1.34, 1.38, 1.43, 1.49, 1.49, 1.55, 1.56, 1.58, 1.65, 1.69, 1.70,
        1.76, 1.77, 1.81, 1.91, 1.94, 1.96, 1.99, 2.06, 2.09, 2.10, 2.14, 2.15, 2.23, 2.24, 2.26, 2.35, 2.37, 2.40,
        2.47, 2.54, 2.62, 2.64, 2.90, 2.92, 2.92, 2.93, 3.21, 3.26, 3.30, 3.59, 3.68, 4.30, 4.64, 5.34, 5.42, 6.01,
    ]
)  # fmt: skip
LAMBDA = [3.158, 3.151, 3.143, 3.136, 3.128, 3.120, 3.111, 3.103, 3.094, 3.085]  # two-sided, alpha = 0.05


def rosner(scores, alpha):
    """How many outliers the one-sided procedure finds, and the smallest gap |R_i - lambda_i| on the way."""
    left, n, found, gap = sorted(scores), len(scores), 0, math.inf
    for i in range(1, (n - 1) // 2 + 1):
        mean, deviation = np.mean(left), np.std(left, ddof=1)
        extreme = (left[-1] - mean) / deviation if deviation > 1e-9 else 0.0
        p = 1 - alpha / (n - i + 1)
        t = stats.t.ppf(p, n - i - 1)
        limit = (n - i) * t / math.sqrt((n - i - 1 + t * t) * (n - i + 1))
        gap = min(gap, abs(extreme - limit))
        if extreme > limit:
            found = i
        left.pop()
    return found, gap


def test_critical_values_are_the_published_ones():
    got = [critical_value(54, i, 0.05 / 2) for i in range(1, 11)]
    np.testing.assert_allclose(got, LAMBDA, atol=2e-3)


def test_the_published_example():
    assert sorted(VITAMIN_E[gesd(VITAMIN_E, 0.025)]) == [5.34, 5.42, 6.01]


@pytest.mark.parametrize("alpha", [1e-14, 1e-9, 1e-3, 0.05, 0.3])
@pytest.mark.parametrize("n", [3, 4, 5, 20, 500])
def test_the_first_critical_value_is_that_of_grubbs(n, alpha):
    """At i = 1 the procedure is Grubbs' one-sided test: G > (n - 1) / sqrt(n) * sqrt(t^2 / (n - 2 + t^2))."""
    t = stats.t.isf(alpha / n, n - 2)
    want = (n - 1) / math.sqrt(n) * math.sqrt(t**2 / (n - 2 + t**2))
    assert critical_value(n, 1, alpha) == pytest.approx(want, rel=1e-9)
    assert critical_value(n, 1, alpha) <= (n - 1) / math.sqrt(n)  # no value lies further out


scores = st.lists(st.integers(0, 400).map(lambda k: k / 4), min_size=3, max_size=30)
clusters = st.tuples(st.lists(st.integers(0, 8), min_size=3, max_size=20), st.lists(st.integers(60, 90), max_size=18))


@settings(max_examples=300)
@given(scores | clusters.map(lambda c: [float(v) for v in c[0] + c[1]]), st.sampled_from([1e-4, 0.01, 0.05, 0.2]))
def test_the_threshold_cuts_off_what_the_plain_loop_finds(values, alpha):
    found, gap = rosner(values, alpha)
    if gap < 1e-6:
        return  # a tie that rounding decides
    x = np.array(values)
    threshold = gesd_threshold(x, alpha)
    largest = np.sort(x)[::-1]
    assert threshold >= largest[found]
    if found and largest[found - 1] > largest[found]:
        assert threshold < largest[found - 1]
    # where the most outliers allowed for cut a group of equal scores in two, all of that group stays
    assert (x > threshold).sum() == ((x > largest[found]).sum() if found else 0)
    assert gesd(values, alpha).tolist() == (x > threshold).tolist()


@pytest.mark.parametrize(("n", "f"), [(20, 8), (40, 10), (40, 19), (8, 3), (101, 50)])
def test_any_number_of_outliers_below_half_is_found(n, f):
    x = np.random.default_rng(0).normal(size=n)
    x[:f] += 1e3
    assert gesd(x, 0.05).tolist() == [True] * f + [False] * (n - f)


@pytest.mark.parametrize(("n", "alpha"), [(10, 0.05), (25, 0.05), (40, 0.1)])
def test_false_alarms_under_a_gaussian_happen_about_as_often_as_told(n, alpha):
    rng, runs = np.random.default_rng(0), 1500
    alarms = sum(gesd(rng.normal(size=n), alpha).any() for _ in range(runs))
    assert abs(alarms / runs - alpha) < 4 * math.sqrt(alpha * (1 - alpha) / runs) + 0.005


def test_the_level_is_spent_over_the_tests_and_adds_up():
    for t in (1, 10, 1000):
        spent = math.fsum(spent_level(0.05, i) for i in range(1, t + 1))
        assert spent == pytest.approx(0.05 * (1 - 1 / (t + 1)))  # a telescoping sum
    x = np.random.default_rng(0).gamma(3.0, size=30)
    for t in (1, 2, 7):
        assert GESD(0.05)(x, t).threshold == gesd_threshold(x, 0.05 / (t * (t + 1)))
        assert GESD(0.05, spend=False)(x, t).threshold == gesd_threshold(x, 0.05)


def test_three_clients_can_be_judged_only_when_two_agree():
    assert gesd([1.0, 1.0, 9.0], 0.05).tolist() == [False, False, True]
    assert not gesd([1.0, 5.0, 9.0], 0.05).any()


@pytest.mark.parametrize("alpha", [0.0, 1.0, math.nan])
def test_alpha_outside_of_its_range(alpha):
    with pytest.raises(ConfigError, match=r"alpha lies in \(0, 1\)"):
        make("rule", "gesd", alpha=alpha)
