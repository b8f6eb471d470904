"""Robust z-scores of a round."""

import numpy as np
import pytest
from scipy.stats import median_abs_deviation

from fedwarden.history.standard import Standard


def ids(n):
    return tuple(f"c{i}" for i in range(n))


@pytest.mark.parametrize("n", [3, 4, 9])
def test_scores_are_those_of_scipy(n):
    x = np.random.default_rng(n).normal(5.0, 2.0, size=n)
    state, scores = Standard().step({}, ids(n), x)
    np.testing.assert_allclose(scores, (x - np.median(x)) / median_abs_deviation(x), rtol=1e-9)
    assert state == Standard().init() == {}


def test_who_is_not_trusted_is_scored_but_does_not_count():
    x = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 900.0, 901.0])
    trusted = np.arange(7) < 5
    scores = Standard().step({}, ids(7), x, trusted)[1]
    np.testing.assert_allclose(scores, x - 3.0, rtol=1e-9)  # median 3, deviation 1
    everybody = Standard().step({}, ids(7), x, np.zeros(7, bool))[1]
    np.testing.assert_allclose(everybody, (x - 4.0) / 2.0, rtol=1e-9)  # nobody is trusted: all count


def test_what_is_not_a_number_stays_so_and_spoils_nobody():
    x = np.array([1.0, np.nan, 2.0, 3.0, np.inf])
    scores = Standard().step({}, ids(5), x)[1]
    np.testing.assert_allclose(scores[[0, 2, 3]], [-1.0, 0.0, 1.0], rtol=1e-9)
    assert np.isnan(scores[1])
    assert scores[4] == np.inf
    bad = np.full(3, np.nan)
    assert np.isnan(Standard().step({}, ids(3), bad)[1]).all()


def test_equal_values_are_zero_and_eps_is_what_one_of_them_is_judged_by():
    assert Standard().step({}, ids(4), np.full(4, 7.0))[1].tolist() == [0.0] * 4
    assert Standard(eps=0.5).step({}, ids(4), np.array([7.0, 7.0, 7.0, 9.0]))[1].tolist() == [0.0, 0.0, 0.0, 4.0]
