"""PID against a plain loop written from the formula."""

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


def test_an_unknown_integral():
    with pytest.raises(ConfigError, match="integral is 'sum', 'mean' or 'standardised'; got 'total'"):
        make("history", "pid", integral="total")
