"""Simple memories against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.history.smoothing import CUSUM, EWMA, Standard

series = st.lists(st.floats(0, 100), min_size=1, max_size=10)


def play(history, rounds):
    """The scores of each round for clients that always take part."""
    state, out = history.init(), []
    for values in rounds:
        ids = tuple(f"c{i}" for i in range(len(values)))
        state, scores = history.step(state, ids, np.array(values, dtype=float))
        out.append(scores)
    return np.array(out)


@given(series, st.floats(0, 0.99))
def test_ewma_is_the_weighted_sum_of_the_past(values, decay):
    got = play(EWMA(decay), [[v] for v in values])[-1, 0]
    t = len(values)
    weights = [(decay ** (t - 1)) if i == 0 else (1 - decay) * decay ** (t - 1 - i) for i in range(t)]
    assert sum(weights) == pytest.approx(1.0)
    assert got == pytest.approx(np.dot(weights, values), rel=1e-9, abs=1e-9)


@given(st.lists(st.lists(st.integers(0, 50), min_size=5, max_size=5), min_size=1, max_size=8), st.floats(0, 3))
def test_cusum_adds_up_what_exceeds_the_slack(rounds, slack):
    sums = [0.0] * 5
    for got, values in zip(play(CUSUM(slack), rounds), rounds, strict=True):
        middle = np.median(values)
        spread = np.median(np.abs(np.array(values) - middle)) + 1e-12
        sums = [max(0.0, s + (v - middle) / spread - slack) for s, v in zip(sums, values, strict=True)]
        np.testing.assert_allclose(got, sums, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_outside_of_its_range(decay):
    with pytest.raises(ConfigError, match=r"decay lies in \[0, 1\)"):
        make("history", "ewma", decay=decay)


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
