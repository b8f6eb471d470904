"""Effects that lead to the same class in every round, and effects that change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.registry import make
from fedwarden.history.leaning import leaning

IDS = ("a", "b")


def by_loop(effects):
    """Mean of the last unit effects, each less its mean, with weight 1 / min(t, 10); then the largest one squared."""
    mean = np.zeros(len(effects[0]))
    for t, effect in enumerate(effects, 1):
        effect = effect - effect.mean()
        mean += (effect / np.linalg.norm(effect) - mean) / min(t, 10)
    off = mean - mean.mean()
    return max(off.max(), 0.0) ** 2 / (off**2).sum() * len(off) / (len(off) - 1)


@given(st.integers(1, 25), st.integers(3, 12), st.integers(0, 1000))
def test_against_a_plain_loop(rounds, classes, seed):
    rng = np.random.default_rng(seed)
    effects = rng.normal(size=(rounds, classes))
    history, state = make("history", "leaning"), {}
    for effect in effects:
        values = np.array([[0.3, *effect], [0.0, *rng.normal(size=classes)]])
        state, scores = history.step(state, IDS, values)
        assert scores[1] == 0.0
    assert scores[0] == pytest.approx(by_loop(effects), abs=1e-9)
    assert set(state) == {"a"}


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_it_lies_between_nothing_and_one(effect):
    assert 0.0 <= leaning(np.array([effect]))[0] <= 1.0 + 1e-9


def test_without_effects_nothing_tells_clients_apart():
    state, scores = make("history", "leaning").step({}, IDS, np.array([0.2, 0.0]))
    assert scores.tolist() == [1.0, 0.0]
    assert not state


def test_rounds_that_do_not_count_have_no_score_and_change_nothing():
    history, state = make("history", "leaning"), {}
    for _ in range(3):
        state, _ = history.step(state, IDS, np.array([[0.3, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    after, scores = history.step(state, IDS, np.array([[0.0, 0.0, 5.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    assert scores.tolist() == [0.0, 0.0]
    assert dict(after) == dict(state)
