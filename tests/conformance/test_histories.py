"""Laws of every registered history at its default options."""

from __future__ import annotations

import json
from copy import deepcopy

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.registry import make

IDS = ("a", "b", "c", "d", "e", "f")
pytestmark = pytest.mark.parametrize("name", fw.names("history"))


def rounds(last=7):
    """Who took part in each round, with which value: clients come and go."""
    for t in range(1, last + 1):
        rng = np.random.default_rng(t)
        here = tuple(c for c in IDS if rng.random() < 0.7) or IDS
        yield here, rng.gamma(2.0, size=len(here))


def play(history, played, state=None):
    state, out = history.init() if state is None else state, []
    for ids, values in played:
        state, scores = history.step(state, ids, values)
        out.append(dict(zip(ids, scores.tolist(), strict=True)))
    return state, out


def test_one_finite_score_per_client(name):
    state, out = play(make("history", name), rounds())
    assert [set(scores) for scores in out] == [set(ids) for ids, _ in rounds()]
    assert all(np.isfinite(list(scores.values())).all() for scores in out)
    assert set(state) <= set(IDS)


def test_clients_are_known_by_id_and_their_order_does_not_matter(name):
    _, straight = play(make("history", name), rounds())
    _, reverse = play(make("history", name), [(ids[::-1], values[::-1]) for ids, values in rounds()])
    for a, b in zip(straight, reverse, strict=True):
        assert b == pytest.approx(a)


def test_what_is_remembered_of_a_client_that_is_away_does_not_change(name):
    history = make("history", name)
    state = history.init()
    for ids, values in rounds():
        after, _ = history.step(state, ids, values)
        assert all(after.get(c) == state.get(c) for c in IDS if c not in ids)
        state = after


def test_a_step_does_not_change_the_state_it_was_given(name):
    history = make("history", name)
    state, _ = play(history, rounds(3))
    copy = deepcopy(state)
    history.step(state, IDS, np.arange(6.0))
    assert state == copy


def test_a_state_survives_json_and_continues_bit_for_bit(name):
    history = make("history", name)
    want_state, want = play(history, rounds(8))
    half, _ = play(history, list(rounds(8))[:4])
    got_state, got = play(history, list(rounds(8))[4:], json.loads(json.dumps(half)))
    assert got == want[4:]
    assert json.dumps(got_state) == json.dumps(want_state)


def test_the_values_are_only_read(name):
    values = np.arange(6.0)
    play(make("history", name), [(IDS, values), (IDS, values)])
    assert values.tolist() == list(range(6))


def test_who_is_always_worse_ends_with_the_highest_score(name):
    rng = np.random.default_rng(0)
    _, out = play(make("history", name), [(IDS, np.array([*rng.uniform(-0.2, 0.2, 5), 9.0])) for _ in range(6)])
    assert max(out[-1], key=out[-1].get) == "f"


def test_an_empty_round(name):
    state, scores = make("history", name).step({}, (), np.zeros(0))
    assert scores.shape == (0,)
    assert not state
