"""Robust location and scale against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation

from fedwarden.core.stats import among, mad, robust_z, severity

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@given(values)
def test_mad_is_scipys(x):
    assert mad(x) == pytest.approx(median_abs_deviation(x), rel=1e-12, abs=1e-300)


@given(values)
def test_robust_z_is_the_deviation_in_mads(x):
    z = robust_z(x)
    np.testing.assert_allclose(
        z * (median_abs_deviation(x) + 1e-12), np.asarray(x) - np.median(x), rtol=1e-9, atol=1e-9
    )


def test_equal_and_no_values():
    assert robust_z([0.1] * 7).tolist() == [0.0] * 7
    assert robust_z([]).shape == (0,)


def test_a_minority_cannot_move_the_rest():
    x = np.array([1.0, 1.1, 0.9, 1.2, 0.8, 1e9, 1e12])
    assert np.abs(robust_z(x)[:5]).max() < 3
    assert robust_z(x)[5:].min() > 1e8


def test_severity_is_the_largest_robust_z_of_any_score():
    rng = np.random.default_rng(0)
    for n in (1, 2, 7, 8, 301):
        scores = [rng.standard_normal(n), rng.standard_cauchy(n), np.zeros(n)]
        for trusted in (np.ones(n, bool), rng.random(n) < 0.5, np.zeros(n, bool)):
            usual = trusted if trusted.any() else ~trusted
            by_hand = [robust_z(u, reference=u[usual]) for u in scores]
            np.testing.assert_array_equal(severity(scores, trusted), np.maximum.reduce([np.zeros(n), *by_hand]))
    spoiled = [np.array([1.0, np.nan, 2.0]), np.arange(3.0)]
    assert np.isnan(severity(spoiled, np.ones(3, bool))).all()
    assert severity([], np.ones(2, bool)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("ids", [tuple(map(str, range(40))), ("a", "b"), (*map(str, range(40)), "7"), ()])
@pytest.mark.parametrize("some", [(), ("3",), ("7", "39", "stranger"), tuple(map(str, range(30)))])
def test_who_is_among_some_however_few_they_are(ids, some):
    for kind in (set, dict.fromkeys, list):
        assert among(kind(some), ids).tolist() == [client in some for client in ids]
