"""Relative distances: no unit, and a claimed count buys only so much."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.signals.relative import RelativeDistance, log_ratio, resistant_slope

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


def test_the_signal_uses_distances_to_the_trusted_mean(cohort_of):
    x = np.random.default_rng(0).normal(size=(6, 5))
    trusted = np.arange(6) != 2
    d = np.linalg.norm(x - x[trusted].mean(axis=0), axis=1)
    want = np.log(d) - np.median(np.log(d[trusted]))
    np.testing.assert_allclose(RelativeDistance()(cohort_of(x, trusted=trusted)), want, atol=1e-9)


def test_equal_updates_and_one_client_are_not_suspicious(cohort_of):
    assert not RelativeDistance()(cohort_of(np.ones((4, 3)))).any()
    assert not RelativeDistance()(cohort_of(np.ones((1, 3)))).any()


def test_options_outside_of_their_range():
    with pytest.raises(ConfigError, match=r"excuse is a factor of at least 1; got 0.5"):
        make("signal", "relative_distance", excuse=0.5)
