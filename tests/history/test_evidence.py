"""Gathered evidence against a plain loop written from the formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from fedwarden.history.evidence import Evidence, Gathered, lower_spread

values = st.lists(st.floats(-3, 5), min_size=1, max_size=15)


@given(values)
def test_the_lower_spread_ignores_what_lies_above_the_median(means):
    x = np.array(means)
    below = sorted(v - np.median(x) for v in means)[: (len(x) + 1) // 2]  # the lower half, the middle one included
    assert lower_spread(x) == pytest.approx(math.sqrt(sum(min(b, 0.0) ** 2 for b in below) / len(below)))
    middle = np.sort(x)[len(x) // 2]
    assert lower_spread(np.where(x > middle, x + 100.0, x)) == pytest.approx(lower_spread(x))


rounds = st.lists(st.dictionaries(st.sampled_from("abcdef"), st.floats(-2, 5), min_size=1), min_size=1, max_size=8)


@given(rounds)
def test_evidence_is_the_formula_whoever_takes_part(played):
    history = Evidence(alpha=0.1)
    state, evidence, past = history.init(), {}, {}
    for now in played:
        state, scores = history.step(state, tuple(now), np.array(list(now.values())))
        for c, value in now.items():
            past.setdefault(c, []).append(min(max(value, -1.0), 1.0))
        means = np.array([faded(past[c]) for c in now])
        allowed = max(math.log(1.7), t.isf(0.1 / len(now), max(len(now) / 2, 1)) * lower_spread(means))
        for c, value in now.items():
            evidence[c] = max(0.0, evidence.get(c, 0.0) + min(max(value / allowed - 1, -0.5), 1.0))
        np.testing.assert_allclose(scores, [evidence[c] for c in now], atol=1e-9)


def faded(values):
    """The mean of the first ten values, into which each later one comes with a weight of a tenth."""
    mean = float(np.mean(values[:10]))
    for value in values[10:]:
        mean = 0.9 * mean + 0.1 * value
    return mean


def test_what_is_allowed_follows_the_cohort():
    """Clients that grow apart late are compared as they are now, not with what they were."""
    history, ids = Evidence(), tuple("abcdefghij")
    state, apart = history.init(), np.linspace(-0.9, 0.9, 10)
    for round in range(120):
        state, scores = history.step(state, ids, apart * (round >= 100))
    assert scores.max() < 2.5


def test_only_trusted_clients_say_what_is_allowed():
    ids, x = tuple("abcdef"), np.array([0.0, 0.05, -0.05, 0.0, 0.6, -9.0])
    trusted = np.array([True] * 5 + [False])
    _, wide = Evidence().step({}, ids, x)
    _, narrow = Evidence().step({}, ids, x, trusted)
    assert wide[4] == 0.0  # the last client makes the cohort look heterogeneous
    assert narrow[4] == pytest.approx(0.6 / math.log(1.7) - 1)


@given(rounds, st.floats(0, 2))
def test_gathered_is_the_sum_of_a_clients_values_whoever_takes_part(played, forget):
    """A round adds at most 1 and takes off at most ``forget``; the sum is never below 0."""
    history = Gathered(forget)
    state, sums = history.init(), {}
    for now in played:
        state, scores = history.step(state, tuple(now), np.array(list(now.values())))
        for c, value in now.items():
            sums[c] = max(0.0, sums.get(c, 0.0) + max(min(value, 1.0), -forget))
        np.testing.assert_allclose(scores, [sums[c] for c in now], atol=1e-9)
    assert {c: row[0] for c, row in state.items()} == pytest.approx(sums, abs=1e-9)
