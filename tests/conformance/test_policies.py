"""The laws of policies again, on inputs that hypothesis looks for."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedwarden as fw
from fedwarden.core.protocols import Findings
from fedwarden.core.registry import make

pytestmark = pytest.mark.parametrize("name", fw.names("policy"))
client = st.tuples(st.booleans(), st.floats(0, 1e15), st.booleans())
tables = st.tuples(st.dictionaries(st.sampled_from("abcdefgh"), client), st.integers(1, 99), st.integers(0, 2**62))


def found(drawn):
    table, round, secret = drawn
    flagged = np.array([mark for mark, _, _ in table.values()], dtype=bool)
    severity = np.array([far for _, far, _ in table.values()], dtype=float)
    doubted = np.array([doubt for _, _, doubt in table.values()], dtype=bool)
    return Findings(tuple(table), flagged, severity, doubted & ~flagged, round, secret)


decisions = st.lists(tables.map(found), max_size=6)


def play(policy, decisions, state=None):
    state, out = policy.init() if state is None else state, []
    for decision in decisions:
        state, weights = policy.step(state, decision)
        out.append(weights)
    return state, out


@given(rounds=decisions)
def test_one_weight_between_zero_and_one_per_client(name, rounds):
    _, out = play(make("policy", name), rounds)
    for decision, weights in zip(rounds, out, strict=True):
        assert weights.shape == (len(decision.client_ids),)
        assert ((weights >= 0) & (weights <= 1)).all()


@given(rounds=decisions)
def test_clients_are_known_by_id_and_their_order_does_not_matter(name, rounds):
    turned = [
        replace(
            d, client_ids=d.client_ids[::-1], flagged=d.flagged[::-1], far=d.severity[::-1], doubted=d.doubted[::-1]
        )
        for d in rounds
    ]
    state_a, a = play(make("policy", name), rounds)
    state_b, b = play(make("policy", name), turned)
    assert all(np.array_equal(x, y[::-1]) for x, y in zip(a, b, strict=True))
    assert dict(state_a) == dict(state_b)


@given(rounds=decisions)
def test_a_state_survives_json_and_is_not_changed_by_a_step(name, rounds):
    policy = make("policy", name)
    state = policy.init()
    for decision in rounds:
        before = deepcopy(state)
        after, weights = policy.step(state, decision)
        assert state == before
        again, same = policy.step(json.loads(json.dumps(state)), decision)
        assert np.array_equal(weights, same)
        assert dict(again) == dict(after)
        state = after


@given(rounds=decisions)
def test_who_was_never_suspicious_keeps_full_weight_and_is_asked(name, rounds):
    policy = make("policy", name)
    clean = [
        replace(
            d,
            client_ids=(*d.client_ids, "good"),
            flagged=np.append(d.flagged, False),
            far=np.append(d.severity, 0.0),
            doubted=np.append(d.doubted, False),
        )
        for d in rounds
    ]
    state, out = play(policy, clean)
    assert all(weights[-1] == 1 for weights in out)
    assert policy.asks("good", state) is True
    assert policy.asks("never seen", state) is True


@given(rounds=decisions)
def test_a_doubt_alone_excludes_no_client(name, rounds):
    policy = make("policy", name)
    only = [replace(d, flagged=np.zeros(len(d.flagged), bool), doubted=d.doubted | d.flagged) for d in rounds]
    state, _ = play(policy, only)
    assert not state
    assert all(policy.asks(c, state) for c in "abcdefgh")


@given(rounds=decisions)
def test_asks_says_yes_or_no(name, rounds):
    policy = make("policy", name)
    state, _ = play(policy, rounds)
    assert all(policy.asks(c, state) in (True, False) for c in "abcdef")
