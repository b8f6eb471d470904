"""What happens to a client that stands out, round by round."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.protocols import Findings
from fedwarden.policies.basic import DownWeight, Exclude, Observe, Quarantine, huber_weight


def decide(flagged, ids="abc", severity=None):
    severity = np.zeros(len(ids)) if severity is None else np.array(severity, dtype=float)
    return Findings(tuple(ids), np.array([c in flagged for c in ids], dtype=bool), severity)


def play(policy, rounds, ids="abc"):
    """The weights of each round and the last state; a round is the flagged ids."""
    state, out = policy.init(), []
    for flagged in rounds:
        state, weights = policy.step(state, decide(flagged, ids))
        out.append(weights.tolist())
    return out, state


def test_observe_changes_nothing():
    weights, state = play(Observe(), ["a", "abc"])
    assert weights == [[1, 1, 1]] * 2
    assert state == {}
    assert Observe().asks("a", state)


def test_exclude_is_for_one_round():
    weights, state = play(Exclude(), ["a", "", "bc"])
    assert weights == [[0, 1, 1], [1, 1, 1], [1, 0, 0]]
    assert state == {}
    assert Exclude().asks("a", state)


def test_quarantine_is_for_good():
    weights, state = play(Quarantine(), ["a", "", "b", "", ""])
    assert weights == [[0, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
    assert [Quarantine().asks(c, state) for c in "abc"] == [False, False, True]


def test_quarantine_holds_while_a_client_is_away():
    policy = Quarantine()
    state, _ = policy.step(policy.init(), decide("a"))
    state, weights = policy.step(state, decide("", ids="bc"))
    assert weights.tolist() == [1, 1]
    assert "a" in state
    assert policy.step(state, decide("", ids="cba"))[1].tolist() == [1, 1, 0]


def test_parole_after_clean_rounds_in_a_row_and_a_flag_starts_the_count_anew():
    for rounds, flags, want in ((2, "a...", "0011"), (3, "a..a....", "00000011")):
        weights, state = play(Quarantine(parole=rounds), [flag.strip(".") for flag in flags])
        assert [w[0] for w in weights] == [*map(int, want)]
        assert state == {}


def test_rounds_away_are_not_clean_rounds():
    policy = Quarantine(parole=2)
    state, _ = policy.step(policy.init(), decide("a"))
    for _ in range(5):
        state, _ = policy.step(state, decide("", ids="bc"))
    state, weights = policy.step(state, decide(""))
    assert weights[0] == 0
    assert policy.step(state, decide(""))[1][0] == 1


def test_who_is_on_parole_is_still_asked():
    policy = Quarantine(parole=1)
    state, _ = policy.step(policy.init(), decide("a"))
    assert policy.asks("a", state)


def test_down_weight_by_how_far_out():
    policy = DownWeight(limit=3.0)
    state, weights = policy.step(policy.init(), decide("c", severity=[0.0, 3.0, 30.0]))
    np.testing.assert_allclose(weights, [1.0, 1.0, 0.1])
    assert policy.asks("c", state)


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20), st.floats(0.1, 100))
def test_hubers_weight_bounds_the_influence(severity, limit):
    z = np.array(severity)
    weights = huber_weight(z, limit)
    assert ((weights > 0) & (weights <= 1)).all()
    np.testing.assert_allclose(weights * np.maximum(z, 0), np.clip(z, 0, limit), rtol=1e-9)
