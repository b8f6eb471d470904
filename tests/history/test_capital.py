"""The betting capital against a plain loop, and its guarantee against thousands of simulated runs."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from fedwarden.history.capital import Account, Capital, grow, share_of_newcomers, stake

B, EFFECT, MOST = 0.4, 0.1, 0.8 / 0.5
ALPHA = 0.05


def by_hand(values):
    """The capital of one client after each round, from the formulas."""
    capital, past, out = 1.0, [], []
    for z in (min(max(v, -B), B) for v in values):
        if past:
            m = sum(past) / len(past)
            v = sum((x - m) ** 2 for x in past) / len(past)
            g = max(m - EFFECT, 0.0)
            lam = min(g / (v + g * g), MOST) if g > 0 else 0.0
            capital *= 1 + lam * (z - EFFECT)
        past.append(z)
        out.append(capital)
    return out


@given(st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=1, max_size=12))
def test_the_capital_is_that_of_a_plain_loop(rounds):
    history, state, ids = Capital(), Capital().init(), ("a", "b", "c")
    scores = []
    for row in rounds:
        state, got = history.step(state, ids, np.array(row) / 3)  # of three clients: times 3
        scores.append(got)
    want = np.log([by_hand(column) for column in zip(*rounds, strict=True)]).T - math.log(6)  # a share of 1 / (2 * 3)
    np.testing.assert_allclose(scores, want, atol=1e-6)


def test_the_number_of_clients_is_that_of_those_in_good_standing():
    trusted, half = np.array([True] * 4 + [False] * 4), np.linspace(-0.1, 0.1, 8)
    ids = tuple("abcdefgh")
    some, everybody = (Capital().step({}, ids, half, mask)[0] for mask in (trusted, None))
    assert [Account(*some[c]).means for c in ids] == pytest.approx((4 * half).tolist())
    assert [Account(*everybody[c]).means for c in ids] == pytest.approx(np.clip(8 * half, -B, B).tolist())
    assert Capital().step({}, ids, half, np.zeros(8, bool))[0] == everybody


def test_who_is_away_keeps_its_capital_and_goes_on_from_there():
    history, ids = Capital(), ("a", "b")
    state = history.init()
    for _ in range(5):
        state, _ = history.step(state, ids, np.array([0.15, -0.1]))
    left, _ = history.step(state, ("b",), np.array([-0.1]))
    assert left["a"] == state["a"]
    again, after = history.step(json.loads(json.dumps(dict(left))), ids, np.array([0.15, -0.1]))
    assert after[0] == pytest.approx(math.log(by_hand([0.3] * 6)[-1] / 4))
    assert Account(*again["a"]).rounds == 6


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_shares_never_add_up_to_more_than_one_and_no_newcomer_is_left_without(batches):
    given_away, known, last = 0.0, 0, 1.0
    for new in batches:
        share = share_of_newcomers(given_away, known, new)
        assert 0 < share <= last
        given_away, known, last = given_away + new * share, known + new, share
        assert given_away < 1
    n, k = batches[0], sum(batches)
    if all(new == 1 for new in batches[1:]) and k > n:
        assert share == pytest.approx(n / (2 * k * (k - 1)))  # one by one: a telescoping sum


def test_clients_that_join_share_what_is_left():
    history = Capital()
    state, scores = history.step({}, tuple("abcd"), np.zeros(4))
    assert np.exp(scores).tolist() == pytest.approx([1 / 8] * 4)
    state, scores = history.step(state, ("x", "a", "y"), np.zeros(3))
    assert np.exp(scores).tolist() == pytest.approx([1 / 12, 1 / 8, 1 / 12])  # a half, divided by 4 + 2
    assert sum(Account(*state[c]).shares for c in "abcdxy") == pytest.approx(1 / 2 + 1 / 6)
    assert (Account(*state[""]).log_capital, Account(*state[""]).shares) == pytest.approx((6, 1 / 2 + 1 / 6))


def play(draw, runs, clients, rounds, stakes=stake):
    """The log of the highest capital of each client of each run; ``draw(t, log_capital)`` gives a round's values."""
    log_capital, top = np.zeros((runs, clients)), np.zeros((runs, clients))
    total, squares = np.zeros((runs, clients)), np.zeros((runs, clients))
    for t in range(rounds):
        z = np.clip(draw(t, log_capital), -B, B)
        mean = total / max(t, 1)
        bets = stakes(mean, np.maximum(squares / max(t, 1) - mean**2, 0.0), EFFECT, MOST)
        log_capital = grow(log_capital, z, bets * (t > 0), EFFECT)
        top = np.maximum(top, log_capital)
        total, squares = total + z, squares + z**2
    return top


def two_point(high, low, rng, size):
    """Two values with a mean of exactly ``EFFECT``."""
    return np.where(rng.random(size) < (EFFECT - low) / (high - low), high, low)


RUNS, CLIENTS = 1000, 10


def coins(rng):
    return lambda t, k: two_point(B, -B, rng, (RUNS, CLIENTS))


def rare_losses(rng):
    return lambda t, k: two_point(0.13, -B, rng, (RUNS, CLIENTS))


def rare_gains(rng):
    return lambda t, k: two_point(B, 0.05, rng, (RUNS, CLIENTS))


def shared_noise(rng):
    """All clients of a run rise and fall together, by more once they have won."""
    return lambda t, k: EFFECT + np.where(rng.random((RUNS, 1)) < 0.5, -1, 1) * np.where(k > 0.5, 0.3, 0.1)


def turning(rng):
    """The noise of a round depends on that of the rounds before, and its shape on the capital."""
    level = np.zeros((RUNS, CLIENTS))

    def draw(t, k):
        level[:] = 0.9 * level + 0.1 * rng.normal(size=level.shape)
        steady, wild = two_point(0.12, -B, rng, level.shape), two_point(B, -0.2, rng, level.shape)
        return np.where(level + 0.2 * k > 0.05, wild, steady)

    return draw


NULLS = [coins, rare_losses, rare_gains, shared_noise, turning]


@pytest.mark.parametrize("rounds", [30, 100, 500])
@pytest.mark.parametrize("null", NULLS)
def test_who_does_no_more_harm_than_is_allowed_is_seldom_excluded(null, rounds):
    """The guarantee: over the whole run, whatever the horizon, the dependence and the shape of the noise."""
    top = play(null(np.random.default_rng(rounds)), RUNS, CLIENTS, rounds)
    excluded = (top - math.log(2 * CLIENTS) > -math.log(ALPHA)).any(axis=1)
    assert excluded.sum() <= binom.isf(1e-4, RUNS, ALPHA)
    for level in (2.0, 5.0, 20.0):  # of one client of each run, as runs are independent
        assert (top[:, 0] > math.log(level)).sum() <= binom.isf(1e-4, RUNS, 1 / level)


def test_a_bet_that_knows_the_outcome_would_break_the_guarantee():
    """The simulation can tell: stakes that come after the value are caught."""
    draw, seen = coins(np.random.default_rng(0)), []

    def shown(t, k):
        seen.append(draw(t, k))
        return seen[-1]

    def knowing(mean, variance, effect, most):
        return np.where(seen[-1] > effect, most, 0.0)

    top = play(shown, RUNS, CLIENTS, 30, knowing)
    assert (top[:, 0] > math.log(20.0)).sum() > binom.isf(1e-4, RUNS, 1 / 20)


@pytest.mark.parametrize(("mean", "noise", "rounds"), [(0.4, 0.0, 20), (0.3, 0.15, 50), (0.2, 0.1, 250)])
def test_who_does_harm_is_found(mean, noise, rounds):
    rng = np.random.default_rng(1)
    top = play(lambda t, k: mean + noise * rng.uniform(-1, 1, (200, 20)), 200, 20, rounds)
    assert (top - math.log(40) > -math.log(ALPHA)).mean() > 0.99


def test_no_bet_can_lose_all():
    assert np.isfinite(grow(np.zeros(1), np.array([-B]), np.array([MOST]), EFFECT)).all()
    state, scores = Capital().init(), np.zeros(0)
    for value in [9.0] * 20 + [-9.0] * 200:
        state, scores = Capital().step(state, ("a",), np.array([value]))
    assert np.isfinite(scores).all()


def test_options_are_used():
    """With a clip of 1 and no effect size a value of 1 in every round grows the capital by a half, at a stake of .5."""
    history, state = Capital(clip=1.0, effect=0.0, stake=0.5), {}
    for _ in range(5):
        state, scores = history.step(state, ("a",), np.array([3.0]))
    assert scores[0] == pytest.approx(4 * math.log(1.5) - math.log(2))
