"""PID against a plain loop written from the formula."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.history.pid import PID

KP, KI, KD = 0.7, 0.3, 0.2


def plain(past, now, integral):
    """u_t of every client of a round, from the list of all its earlier distances."""
    sums = {c: sum(past[c]) for c in now if past.get(c)}
    scores = {}
    for c, distance in now.items():
        if not past.get(c):
            scores[c] = KP * distance
            continue
        if integral == "sum":
            total = sums[c]
        elif integral == "mean":
            total = sums[c] / len(past[c])
        else:
            deviation = np.std(list(sums.values()))
            total = (sums[c] - np.mean(list(sums.values()))) / deviation if deviation > 0 else 0.0
        scores[c] = KP * distance + KI * total + KD * (distance - past[c][-1])
    return scores


rounds = st.lists(
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 1000).map(lambda k: k / 8), min_size=1),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("integral", ["sum", "mean", "standardised"])
@given(rounds)
def test_pid_is_the_formula_whoever_takes_part(integral, played):
    pid, past = PID(KP, KI, KD, integral), {}
    state = pid.init()
    for now in played:
        want = plain(past, now, integral)
        state, scores = pid.step(state, tuple(now), np.array(list(now.values())))
        np.testing.assert_allclose(scores, [want[c] for c in now], rtol=1e-9, atol=1e-9)
        for c, distance in now.items():
            past.setdefault(c, []).append(distance)


def test_three_rounds_by_hand():
    pid = PID(kp=1.0, ki=0.5, kd=0.25)
    state, u1 = pid.step(pid.init(), ("a",), np.array([2.0]))
    state, u2 = pid.step(state, ("a",), np.array([4.0]))
    state, u3 = pid.step(state, ("a",), np.array([3.0]))
    assert (u1[0], u2[0], u3[0]) == (2.0, 4.0 + 0.5 * 2.0 + 0.25 * 2.0, 3.0 + 0.5 * 6.0 + 0.25 * -1.0)


def test_a_client_that_was_away_is_compared_with_when_it_was_last_here():
    pid = PID(kp=1.0, ki=0.5, kd=1.0)
    state, _ = pid.step(pid.init(), ("a", "b"), np.array([2.0, 7.0]))
    for _ in range(3):
        state, _ = pid.step(state, ("a",), np.array([9.0]))
    state, scores = pid.step(state, ("b", "new"), np.array([8.0, 8.0]))
    assert scores.tolist() == [8.0 + 0.5 * 7.0 + (8.0 - 7.0), 8.0]


def test_mean_compares_clients_that_took_part_in_different_numbers_of_rounds():
    pid = PID(integral="mean")
    state = pid.init()
    for t in range(10):
        ids = ("always", "rarely") if t in (0, 9) else ("always",)
        state, scores = pid.step(state, ids, np.full(len(ids), 3.0))
    assert scores[0] == pytest.approx(scores[1])


def test_a_step_does_not_change_the_state_it_was_given():
    pid = PID()
    before, _ = pid.step(pid.init(), ("a",), np.array([1.0]))
    copy = json.dumps(dict(before))
    pid.step(before, ("a", "b"), np.array([2.0, 3.0]))
    assert json.dumps(dict(before)) == copy


def test_an_empty_round():
    state, scores = PID().step({"a": [1.0, 1.0, 1]}, (), np.zeros(0))
    assert scores.shape == (0,)
    assert state == {"a": [1.0, 1.0, 1]}


def test_an_unknown_integral():
    with pytest.raises(ConfigError, match="integral is 'sum', 'mean' or 'standardised'; got 'total'"):
        make("history", "pid", integral="total")
