"""Turns of clients in doubt: how often, how many at once, and what nobody can foretell or influence."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.protocols import Findings
from fedwarden.policies.turns import Turns, chance, draw

NAMES = [f"client {i}" for i in range(40)]
sizes = st.integers(1, 40)


def findings(n, doubted, round=1, secret=0, flagged=()):
    marked = [np.isin(np.arange(n), list(some)) for some in (flagged, doubted)]
    return Findings(tuple(NAMES[:n]), marked[0], np.zeros(n), marked[1], round, secret)


def weights(policy, *args, excluded=None, **more):
    return policy.step(excluded or {}, findings(*args, **more))[1]


@given(sizes, st.integers(1, 400), st.floats(0, 1), st.floats(0, 1), st.floats(0, 9))
def test_the_chance_is_the_formula(doubted, clients, most, share, least):
    allowed = least if least > share * clients else share * clients
    want = allowed / doubted if allowed < most * doubted else most
    assert chance(doubted, clients, most, share, least) == pytest.approx(want)


@given(st.integers(1, 30), st.floats(0, 1), st.integers(0, 2**62))
def test_a_coin_hangs_on_no_other_client(k, p, secret):
    """The coin of the first client is the same whichever clients are in doubt with it, and whatever their chances."""
    alone = draw(NAMES[:1], np.array([p]), secret, 5)
    among = draw(NAMES[:k], np.array([p, *np.linspace(0, 1, k - 1)]), secret, 5)
    assert among[0] == alone[0]


def test_coins_of_two_clients_are_independent():
    """Over 4,000 rounds both are in as often as the product of the chances says, within 4.5 standard deviations."""
    rounds, chances = 4000, np.array([0.3, 0.6])
    both = np.mean([draw(NAMES[:2], chances, 3, t).all() for t in range(rounds)])
    assert abs(both - 0.18) < 4.5 * math.sqrt(0.18 * 0.82 / rounds)


@given(st.floats(-9, 9), st.floats(-9, 9), st.integers(3, 30))
def test_measured_harm_lowers_the_chance_and_help_raises_it(a, b, n):
    found = replace(findings(n, {0, 1}), against=np.array([a, b, *np.zeros(n - 2)]))
    p = 0.9 if n >= 6 else 1.0
    want = [min(1.0, p * math.exp(-a)), min(1.0, p * math.exp(-b)), *np.ones(n - 2)]
    np.testing.assert_allclose(Turns().chances({}, found), want)


@given(st.floats(-9, 9), st.integers(1, 9), st.integers(10, 30))
def test_where_jurors_judge_by_the_turns_no_coin_always_falls_the_same_way(against, doubted, n):
    """Without evidence the chance is the usual one; evidence moves it, and leaves something to learn."""
    found = replace(findings(n, range(doubted)), judged=True)
    usual = chance(doubted, n, 0.9, 0.1, 2.0)
    assert Turns().chances({}, found)[0] == pytest.approx(usual)
    p = Turns().chances({}, replace(found, against=np.full(n, against)))[0]
    assert min(usual, 0.1) - 1e-12 <= p <= 0.9
    assert p <= usual + 1e-12 if against > 0 else p >= usual - 1e-12


def test_chances_are_those_of_the_weights():
    """Over 2,000 secrets, within 4.5 standard deviations; a client that no coin decides about has its weight."""
    policy, draws = Turns(), 2000
    found = replace(findings(10, {0, 1, 2, 3}, flagged={4}), against=np.array([1.0, -1, 0, 3, *np.zeros(6)]))
    excluded, _ = policy.step({NAMES[5]: -1}, found)
    chances = policy.chances(excluded, found)
    seen = np.mean([policy.step({NAMES[5]: -1}, replace(found, secret=s))[1] for s in range(draws)], axis=0)
    assert chances[4:].tolist() == seen[4:].tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    np.testing.assert_array_less(np.abs(seen - chances), 4.5 * np.sqrt(chances * (1 - chances) / draws) + 1e-12)


@pytest.mark.parametrize(("n", "k"), [(20, 1), (20, 2), (20, 4), (20, 9), (40, 19), (6, 2)])
def test_each_client_in_doubt_has_its_turn_as_often_as_the_formula_says(n, k):
    """Over 2,000 rounds, within 4.5 standard deviations of a binomial; no client less than another."""
    rounds, p = 2000, min(0.9, max(2.0, n / 10) / k)
    seen = sum(weights(Turns(), n, range(k), round=t, secret=11) for t in range(rounds))
    off = 4.5 * math.sqrt(p * (1 - p) / rounds)
    np.testing.assert_allclose(seen[:k] / rounds, p, atol=off)
    assert (seen[k:] == rounds).all()


@given(st.integers(1, 5), st.sets(st.integers(0, 4)), st.integers(0, 2**62))
def test_among_fewer_than_six_no_client_is_left_out_for_a_doubt(n, doubted, secret):
    assert weights(Turns(), n, doubted & set(range(n)), secret=secret).tolist() == [1.0] * n
    assert weights(Turns(most=0.0), n, doubted & set(range(n)), secret=secret).tolist() == [1.0] * n


def test_with_most_zero_a_client_is_out_for_as_long_as_the_doubt_lasts():
    for t in range(50):
        assert weights(Turns(most=0.0), 10, {1, 4}, round=t).tolist() == [float(i not in (1, 4)) for i in range(10)]
    assert weights(Turns(most=0.0), 10, ()).all()


def test_another_secret_draws_otherwise_and_the_same_one_the_same():
    runs = [[weights(Turns(), 20, range(9), round=t, secret=s).tolist() for t in range(20)] for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_proven_harm_excludes_for_good_and_a_doubt_never_does():
    policy, excluded = Turns(), {}
    for t in range(1, 30):
        excluded, found = policy.step(excluded, findings(10, {0, 1, 2}, t, flagged={3} if t == 5 else ()))
        assert excluded == ({NAMES[3]: -1} if t >= 5 else {})
        assert found[3] == float(t < 5)
    assert [policy.asks(c, excluded) for c in NAMES[:5]] == [True, True, True, False, True]


def test_an_excluded_client_in_doubt_takes_no_turn_from_the_others():
    """Of three in doubt one is excluded: the other two are in with 0.9 each, and not with two thirds."""
    seen = sum(
        weights(Turns(), 10, {0, 1, 2}, round=t, excluded={NAMES[2]: -1}) for t in range(1000)
    )  # fmt: skip
    np.testing.assert_allclose(seen[:2] / 1000, 0.9, atol=0.05)
    assert seen[2] == 0
