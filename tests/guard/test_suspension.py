"""Weak evidence suspends, strong evidence excludes for good, and only rounds in which clients agree prove anything."""

from __future__ import annotations

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.core.types import Reading
from fedwarden.guard.judge import Guard, Watch, judge
from fedwarden.guard.replay import replay
from fedwarden.guard.telling import judgement_notes
from fedwarden.policies.basic import Quarantine

NAMES = tuple("abcdefgh")


class Level:
    """Gives each round's values and agreement, in turn."""

    def __call__(self, cohort):
        raise AssertionError("not measured here")


def play(watches, rounds, agreement=None, length=1.0):
    """Judge rounds of given values; (excluded, suspended, weights) after each."""
    guard = Guard(tuple(watches), Quarantine(), quorum=4, settle=0.15)
    memory, out = guard.blank(), []
    for t, values in enumerate(rounds, start=1):
        facts = {} if agreement is None else {"agreement": agreement[t - 1]}
        reading = Reading(np.array(values, dtype=np.float64), facts=facts)
        long = length if isinstance(length, float) else length[t - 1]
        memory, found = judge(
            guard, memory, t, NAMES, np.arange(8), lambda trusted, kept, r=reading: [r] * len(watches), long
        )
        out.append((set(memory.excluded), set(memory.suspended), found.weights))
    return out


def watch(until, agreeing=False, name="w"):
    history = {"name": "evidence", "effect": 1.0}
    return Watch(Level(), history, {"name": "offset", "limit": 2.5}, 1, name, until=until, agreeing=agreeing)


FAR, NEAR = [9.0] + [0.0] * 7, [0.0] * 8


def test_a_suspended_client_comes_back_once_its_evidence_is_half_of_the_limit():
    found = play([watch("clean")], [FAR] * 3 + [NEAR] * 5)
    assert [bool(gone) for gone, _, _ in found] == [False, False, True, True, True, True, False, False]  # 3, 2.5 .. 1
    assert all(gone == suspended for gone, suspended, _ in found)
    assert [float(w[0]) for *_, w in found] == [1, 1, 0, 0, 0, 0, 1, 1]


def test_who_is_excluded_for_good_is_not_suspended_and_does_not_come_back():
    found = play([watch("good")], [FAR] * 3 + [NEAR] * 9)
    assert found[-1][:2] == ({"a"}, set())
    assert not Quarantine().asks("a", {"a": -1})
    assert Quarantine().asks("a", {"a": 0})


def test_more_evidence_turns_a_suspension_into_an_exclusion():
    strong = Watch(Level(), {"name": "evidence", "effect": 1.0}, {"name": "offset", "limit": 4.5}, 1, "strong")
    found = play([watch("clean"), strong], [FAR] * 6 + [NEAR] * 9)
    assert [s for _, s, _ in found[2:5]] == [{"a"}, {"a"}, set()]
    assert found[-1][0] == {"a"}


def test_only_rounds_in_which_clients_agree_prove_anything():
    rounds = [FAR] * 12
    assert play([watch("good", agreeing=True)], rounds, agreement=[0.5] * 12)[-1][0] == set()
    assert play([watch("good", agreeing=True)], rounds, agreement=[0.5, 0.7] * 6)[5][0] == {"a"}  # the third such round
    assert play([watch("good", agreeing=True)], rounds)[2][0] == {"a"}  # nobody measures it


def test_rounds_that_prove_nothing_take_nothing_off():
    agreement = [0.7, 0.7, 0.5, 0.5, 0.5, 0.7]
    assert play([watch("good", agreeing=True)], [FAR] * 2 + [NEAR] * 3 + [FAR], agreement)[-1][0] == {"a"}


def test_once_training_has_settled_suspended_clients_come_back_and_excluded_ones_do_not():
    lengths = [1.0] * 4 + [0.1] * 2
    assert play([watch("clean")], [FAR] * 6, length=lengths)[-1][0] == set()
    assert play([watch("good")], [FAR] * 6, length=lengths)[-1][0] == {"a"}


def test_in_a_round_of_too_few_nobody_comes_back():
    guard = Guard((watch("clean"),), Quarantine(), quorum=4)
    memory = guard.blank()
    for t in range(1, 4):
        memory, _ = judge(guard, memory, t, NAMES, np.arange(8), lambda trusted, kept: [np.array(FAR)])
    few, _ = judge(guard, memory, 4, ("a", "b"), np.arange(2), lambda trusted, kept: [np.zeros(2)])
    assert few.suspended == ("a",)


def test_a_word_for_every_change():
    warden = fw.Warden([watch("clean")], "quarantine")
    guard, memory, said = warden.guard, warden.memory, []
    for t, values in enumerate([FAR] * 3 + [NEAR] * 4, start=1):
        before = memory
        memory, found = judge(guard, memory, t, NAMES, np.arange(8), lambda trusted, kept, v=values: [np.array(v)])
        notes = judgement_notes(guard, before, memory, found, NAMES, np.arange(8))
        said += [(t, note.kind, note.clients) for note in notes]
    assert said == [(3, "suspended", ("a",)), (7, "let_in", ("a",))]


def test_a_replay_suspends_and_excludes_as_the_live_guard_did():
    rng = np.random.default_rng(0)
    common, live = rng.normal(size=400), fw.Warden.preset("auto")
    records = []
    for t in range(1, 9):
        rows = common * (t < 6) + 0.8 * rng.normal(size=(10, 400))
        rows[0] *= -3
        records.append(live.step(fw.Cohort(t, tuple("abcdefghij"), fw.Updates.of(rows), np.ones(10))).record)
    again = replay(records, fw.Warden.preset("auto"))
    assert any(r.excluded for r in records)
    assert [(r.excluded, r.suspended) for r in again] == [(r.excluded, r.suspended) for r in records]
    assert all("agreement" in r.metrics for r in records)


def test_a_duration_that_does_not_exist():
    with pytest.raises(ConfigError, match="'round', 'clean' or 'good'"):
        Watch("direction", until="ever")


@pytest.mark.parametrize(("rounds", "stays"), [(4, False), (9, False), (11, True)])
def test_evidence_far_beyond_the_limit_does_not_lapse_when_training_settles(rounds, stays):
    """One point of evidence a round, and a limit of 2.5: four times that is 10."""
    found = play([watch("clean")], [FAR] * rounds + [NEAR], length=[1.0] * rounds + [0.1])
    assert found[-2][1] == {"a"}
    assert (found[-1][1] == {"a"}) == stays
