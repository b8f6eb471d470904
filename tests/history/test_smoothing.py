"""Simple memories against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.history.smoothing import CUSUM, EWMA

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
