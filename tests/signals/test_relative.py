"""Relative distances: no unit, and a claimed count buys only so much."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedwarden as fw
from fedwarden.core.registry import make
from fedwarden.signals.relative import STEEPEST, RelativeDistance, core_distances, log_ratio, pairwise_slope
from fedwarden.updates.updates import Updates

distances = st.lists(st.floats(0.01, 100), min_size=1, max_size=12)


def everyone(x):
    return np.ones(len(x), bool)


@given(st.lists(st.integers(-100, 100), min_size=2, max_size=20), st.integers(0, 5), st.integers(-9, 9))
def test_the_slope_of_points_on_a_line(xs, slope, level):
    x = np.array(xs, dtype=float)
    pairs = sum(a != b for a, b in combinations(xs, 2))
    assert pairwise_slope(x, slope * x + level) == (pytest.approx(slope) if pairs >= 5 else 0.0)


def test_one_far_point_does_not_turn_the_line():
    x = np.arange(9.0)
    y = 2 * x
    y[8] = 1e6
    assert pairwise_slope(x, y) == pytest.approx(2.0)
    assert pairwise_slope(np.ones(5), np.arange(5.0)) == 0.0


@given(distances)
def test_with_equal_counts_it_is_the_log_of_the_ratio_to_the_median(ds):
    d = np.array(ds)
    logs = np.log(d)
    np.testing.assert_allclose(log_ratio(d, np.full(len(d), 7.0), everyone(d), 2.0), logs - np.median(logs), atol=1e-9)


@given(distances, st.data(), st.floats(1, 5))
def test_a_count_buys_no_more_than_the_excuse(ds, data, excuse):
    d = np.array(ds)
    counts = np.array(data.draw(st.lists(st.floats(1, 1e9), min_size=len(ds), max_size=len(ds))))
    plain = log_ratio(d, np.ones(len(d)), everyone(d), excuse)
    moved = np.abs(log_ratio(d, counts, everyone(d), excuse) - plain)
    assert moved.max() <= 2 * STEEPEST * math.log(excuse) + 1e-9  # its own part, and that of the median


def test_a_larger_data_set_explains_a_larger_distance():
    counts = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    scores = log_ratio(5 * np.sqrt(counts), counts, everyone(counts), excuse=10.0)  # as far as a random walk gets
    np.testing.assert_allclose(scores, 0.0, atol=1e-9)
    alike = log_ratio(np.ones(7), counts, everyone(counts), excuse=10.0)
    np.testing.assert_allclose(alike, 0.0, atol=1e-9)  # where size explains nothing, it excuses nothing


def test_no_count_of_others_pushes_a_client_over_the_effect_size():
    """Attackers who claim counts as large as their distance tilt the slope against clients with little data."""
    honest, liars = np.ones(6), np.exp(np.linspace(1.0, 8.0, 5))
    d, counts = np.concatenate([honest, liars]), np.concatenate([[0.01, 1.0, 1.0, 1.0, 1.0, 1.0], liars])
    assert log_ratio(d, counts, everyone(d), 2.0)[0] < math.log(1.7)


def core_by_hand(x, trusted):
    """Distances to the mean of the larger half of the trusted rows that is closest to their mean."""
    centre = x[trusted].mean(axis=0)
    nearest = sorted(np.flatnonzero(trusted), key=lambda i: np.linalg.norm(x[i] - centre))
    core = nearest[: len(nearest) // 2 + 1]
    k, middle = len(core), x[core].mean(axis=0)
    return [np.linalg.norm(x[i] - middle) / math.sqrt(1 - 1 / k if i in core else 1 + 1 / k) for i in range(len(x))]


@pytest.mark.parametrize("n", [3, 4, 7, 12])
def test_the_signal_uses_distances_to_the_core_of_the_trusted(n, cohort_of):
    x = np.random.default_rng(n).normal(size=(n, 5))
    for trusted in (np.ones(n, bool), np.arange(n) != 1):
        want = np.array(core_by_hand(x, trusted))
        np.testing.assert_allclose(core_distances(Updates.of(x).gram(), trusted), want, rtol=1e-9)
        scores = RelativeDistance()(cohort_of(x, trusted=trusted))
        np.testing.assert_allclose(scores, np.log(want) - np.median(np.log(want[trusted])), atol=1e-9)


def test_of_many_clients_distances_are_measured_by_sketches(cohort_of):
    """Off by 1 / sqrt(2 * 8192) = .008 each, and five times that at most."""
    rng = np.random.default_rng(0)
    x = (np.exp(0.3 * rng.normal(size=(300, 1))) * rng.normal(size=(300, 20_000))).astype(np.float32)
    want = np.log(core_by_hand(x, np.ones(300, bool)))
    np.testing.assert_allclose(RelativeDistance()(cohort_of(x)), want - np.median(want), atol=0.04)


@pytest.mark.parametrize(("n", "f"), [(4, 1), (5, 2), (10, 4), (11, 1), (20, 9)])
@pytest.mark.parametrize("strength", [1e3, 1e9, 1e15])
def test_a_minority_that_pulls_the_mean_does_not_pull_the_core(n, f, strength, cohort_of):
    x = np.random.default_rng(n).normal(size=(n, 100)).astype(np.float32)
    x[:f] = strength
    scores = RelativeDistance()(cohort_of(x))
    assert scores[:f].min() > math.log(10)
    assert np.abs(scores[f:]).max() < math.log(3)


def test_a_bounded_distance_forgives_length_and_nothing_else():
    """Longer in the same direction is not far any more; the opposite is; nobody is farther than without."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=500) + 0.3 * rng.normal(size=(9, 500))
    rows[0] *= 2.5
    rows[1] *= -1
    cohort = fw.Cohort(1, tuple("abcdefghi"), fw.Updates.of(rows), np.ones(9))
    free, bounded = (make("signal", "relative_distance", bounded=b)(cohort) for b in (False, True))
    assert free[0] > np.log(1.7) > bounded[0]
    assert bounded[1] > np.log(1.7)
    assert (bounded <= free + 1e-12).all()
