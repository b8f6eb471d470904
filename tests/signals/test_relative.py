"""Relative distances: no unit, and a claimed count buys only so much."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.signals.relative import RelativeDistance, core_distances, log_ratio, resistant_slope
from fedwarden.updates.updates import Updates

distances = st.lists(st.floats(0.01, 100), min_size=1, max_size=12)


def everyone(x):
    return np.ones(len(x), bool)


@given(st.lists(st.integers(-100, 100), min_size=2, max_size=20), st.integers(0, 5), st.integers(-9, 9))
def test_the_slope_of_points_on_a_line(xs, slope, level):
    x = np.array(xs, dtype=float)
    third = math.ceil(len(xs) / 3)
    if sorted(xs)[third - 1] < sorted(xs)[-third]:
        assert resistant_slope(x, slope * x + level) == pytest.approx(slope)


def test_one_far_point_does_not_turn_the_line():
    x = np.arange(9.0)
    y = 2 * x
    y[8] = 1e6
    assert resistant_slope(x, y) == pytest.approx(2.0)
    assert resistant_slope(np.ones(5), np.arange(5.0)) == 0.0


@given(distances)
def test_with_equal_counts_it_is_the_log_of_the_ratio_to_the_median(ds):
    d = np.array(ds)
    logs = np.log(d)
    np.testing.assert_allclose(log_ratio(d, np.full(len(d), 7.0), everyone(d), 2.0), logs - np.median(logs), atol=1e-9)


@given(distances, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_it_has_no_unit(ds, scale, many):
    d, counts = np.array(ds), np.arange(1.0, len(ds) + 1)
    want = log_ratio(d, counts, everyone(d), 2.0)
    np.testing.assert_allclose(log_ratio(scale * d, many * counts, everyone(d), 2.0), want, atol=1e-6)


@given(distances, st.data(), st.floats(1, 5))
def test_a_count_buys_no_more_than_the_excuse(ds, data, excuse):
    d = np.array(ds)
    counts = np.array(data.draw(st.lists(st.floats(1, 1e9), min_size=len(ds), max_size=len(ds))))
    plain = log_ratio(d, np.ones(len(d)), everyone(d), excuse)
    assert np.abs(log_ratio(d, counts, everyone(d), excuse) - plain).max() <= math.log(excuse) + 1e-9


def test_a_larger_data_set_explains_a_larger_distance():
    counts = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    scores = log_ratio(5 * counts, counts, everyone(counts), excuse=10.0)  # distances exactly as the counts
    np.testing.assert_allclose(scores[3:], scores[3], atol=1e-9)
    assert (np.diff(scores[:4]) > 0).all()  # a small data set excuses nothing


def test_only_trusted_clients_define_the_typical_distance():
    d = np.array([1.0, 1.0, 1.0, 50.0, 60.0, 70.0])
    trusted = np.array([True, True, True, False, False, True])
    assert np.exp(log_ratio(d, np.ones(6), trusted, 2.0)) == pytest.approx([1, 1, 1, 50, 60, 70])


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


def test_the_divisors_are_what_independent_rows_have():
    """For k rows of one variance: E||x - mean||^2 is (1 - 1/k) inside of them and (1 + 1/k) outside."""
    rng, k = np.random.default_rng(0), 4
    x = rng.normal(size=(k + 1, 200_000))
    middle = x[:k].mean(axis=0)
    squares = ((x - middle) ** 2).mean(axis=1)
    np.testing.assert_allclose(squares[:k], 1 - 1 / k, rtol=0.02)
    np.testing.assert_allclose(squares[k], 1 + 1 / k, rtol=0.02)


@pytest.mark.parametrize(("n", "f"), [(4, 1), (5, 2), (10, 4), (11, 1), (20, 9)])
@pytest.mark.parametrize("strength", [1e3, 1e9, 1e15])
def test_a_minority_that_pulls_the_mean_does_not_pull_the_core(n, f, strength, cohort_of):
    x = np.random.default_rng(n).normal(size=(n, 100)).astype(np.float32)
    x[:f] = strength
    scores = RelativeDistance()(cohort_of(x))
    assert scores[:f].min() > math.log(10)
    assert np.abs(scores[f:]).max() < math.log(3)


def test_equal_updates_and_one_client_are_not_suspicious(cohort_of):
    assert not RelativeDistance()(cohort_of(np.ones((4, 3)))).any()
    assert not RelativeDistance()(cohort_of(np.ones((1, 3)))).any()


def test_options_outside_of_their_range():
    with pytest.raises(ConfigError, match=r"excuse is a factor of at least 1; got 0.5"):
        make("signal", "relative_distance", excuse=0.5)
