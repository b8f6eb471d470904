"""The contained mean: weights by hand, its memory, and what suspicion can and cannot do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedwarden as fw
from fedwarden.aggregators.contained import Contained, contained, lasting, leniency
from fedwarden.core.registry import make
from fedwarden.guard.suspicion import nearness

ROWS = np.random.default_rng(0).normal(size=(4, 6))


def cohort(suspicion=(), ids="abcd", rows=ROWS, counts=(1.0, 2.0, 3.0, 4.0)):
    return fw.Cohort(1, tuple(ids), fw.Updates.of(rows), np.array(counts), suspicion=suspicion)


def test_without_suspicion_it_is_the_mean():
    for weighted in (True, False):
        state, made = Contained(weighted=weighted).step({}, cohort(), np.array([1.0, 0.5, 0.0, 1.0]))
        _, want = make("aggregator", "mean", weighted=weighted).step({}, cohort(), np.array([1.0, 0.5, 0.0, 1.0]))
        np.testing.assert_array_equal(made.weights, want.weights)
        np.testing.assert_array_equal(made.update, want.update)
        assert state["a"] == (0.0, 1)


def test_weights_over_three_rounds_by_hand():
    """Suspicion 1, 0, 0 with a memory of two rounds is 1, 1/2 and 1/4; from 0 to 1 that keeps 0.05, 1/2 and 3/4."""
    rule, state, shares = Contained(low=0.0, high=1.0, memory=2, weighted=False), {}, []
    for s in (1.0, 0.0, 0.0):
        state, made = rule.step(state, cohort([s, 0.0, 0.0, 0.0]), np.ones(4))
        shares.append(made.weights[0])
        np.testing.assert_allclose(made.weights @ ROWS, made.update, atol=1e-12)
    assert shares == pytest.approx([0.05 / 3.05, 0.5 / 3.5, 0.75 / 3.75])
    assert state["a"] == (0.25, 3)


def test_a_client_that_is_away_keeps_its_level():
    state, _ = Contained().step({}, cohort([0.8, 0.0, 0.0, 0.0]), np.ones(4))
    after, _ = Contained().step(state, cohort(ids="bcde"), np.ones(4))
    assert after["a"] == (0.8, 1)
    assert after["b"] == (0.0, 2)


def test_the_memory_is_read_back_from_lists():
    """A checkpoint holds lists."""
    state, first = Contained().step({"a": (0.4, 3)}, cohort([0.2, 0.0, 0.0, 0.0]), np.ones(4))
    again, second = Contained().step({"a": [0.4, 3]}, cohort([0.2, 0.0, 0.0, 0.0]), np.ones(4))
    assert state == again
    np.testing.assert_array_equal(first.weights, second.weights)


@given(st.lists(st.floats(-5, 5), min_size=4, max_size=12), st.floats(0.1, 3.0))
def test_half_of_the_clients_are_beyond_suspicion(scores, limit):
    values = np.array(scores)
    near = nearness(values, float(np.median(values)) + limit, np.ones(len(values), bool))
    assert 2 * (near == 0).sum() >= len(values)
    assert ((near >= 0) & (near <= 1)).all()
    assert (near[values > np.median(values) + limit] == 1).all()


def test_nearness_where_there_is_no_scale():
    scores, everyone = np.array([0.0, 1.0, np.nan]), np.array([True, True, False])
    assert nearness(scores, np.inf, everyone).tolist() == [0.0, 0.0, 0.0]
    assert nearness(scores, 0.5, everyone).tolist() == [0.0, 0.0, 0.0]  # the threshold is the median
    assert nearness(scores, 2.5, everyone).tolist() == [0.0, 0.25, 1.0]


def test_more_suspicion_never_gives_more_weight():
    levels = np.linspace(0, 1, 30)
    kept = leniency(levels, 0.15, 0.5)
    assert (np.diff(kept) <= 0).all()
    assert (kept.max(), kept.min()) == (1.0, 0.05)


@pytest.mark.parametrize("options", [{"low": 0.5}, {"low": -0.1}, {"memory": 0}])
def test_limits_of_the_options(options):
    with pytest.raises(ValueError, match="low < high and a memory"):
        Contained(**options)


def test_the_formulas_refuse_what_they_cannot_use():
    with pytest.raises(ValueError, match="positive sum; got a sum of 0"):
        contained(fw.Updates.of(ROWS), np.zeros(4), np.ones(4))
    with pytest.raises(ValueError, match="0 <= low < high"):
        leniency(np.zeros(2), 0.5, 0.5)
    assert lasting(np.zeros(1), np.zeros(1), np.ones(1), memory=1).tolist() == [1.0]


def pushed(t, gain, n=12, f=3, d=400):
    """Honest clients agree with a cosine near 0.8; the first f are pushed against what they agree on."""
    rng = np.random.default_rng(t)
    rows = 1.0 + 0.5 * rng.normal(size=(n, d))
    rows[:f] -= gain
    return rows


def test_who_is_pushed_below_the_limit_loses_weight_and_nobody_else_does():
    warden, f = fw.Warden.preset("auto"), 3
    for t in range(1, 9):
        updates = fw.Updates.of(pushed(t, 0.55))
        outcome = warden.step(fw.Cohort(t, tuple(map(str, range(12))), updates, np.full(12, 10.0)))
    assert not outcome.record.excluded
    assert (outcome.weights[:f] < 0.6 / 12).all()
    assert (outcome.weights[f:] > 1 / 12).all()


def test_suspicion_waits_for_a_quorum_and_for_watches_that_suspect():
    rows = pushed(1, 0.9)
    for watches, quorum, some in (([True], 1, True), ([True], 13, False), ([False], 1, False)):
        made = [fw.Watch("direction", "raw", {"name": "offset", "limit": 2.0}, 1, suspects=s) for s in watches]
        warden = fw.Warden(made, "quarantine", quorum=quorum)
        decision = warden.decide(fw.Cohort(1, tuple(map(str, range(12))), fw.Updates.of(rows), np.full(12, 10.0)))
        assert decision.cohort.suspicion.any() == some
        assert not decision.judgement.flagged.any()
