"""What becomes of a doubt: how long it lasts, what defines normal meanwhile, and when a majority is too slim."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.core.types import Reading
from fedwarden.guard.judge import Guard, Watch, judge, outnumbered, usual
from fedwarden.guard.telling import judgement_notes
from fedwarden.policies.basic import Exclude, Quarantine
from fedwarden.policies.turns import Turns

NAMES = tuple("abcdefgh")


class Level:
    """Stands for a signal whose values the tests give."""

    words = "its level is high"

    def __call__(self, cohort):
        raise AssertionError("not measured here")


def watch(action="doubt", limit=2.5, name="w", history="evidence"):
    made = {"name": history, "effect": 1.0} if history == "evidence" else history
    return Watch(Level(), made, {"name": "offset", "limit": limit}, 1, name, action=action)


def judged(guard, memory, round, client_ids, readings):
    leaders = np.arange(len(client_ids))
    return judge(guard, memory, round, client_ids, leaders, usual(memory, client_ids, leaders), readings)


def play(watches, rounds, policy=None, names=NAMES, **parts):
    """Judge rounds of given values; the memory and the judgement after each."""
    guard = Guard(tuple(watches), policy or Exclude(), quorum=4, **parts)
    memory, out = guard.blank(), []
    for t, values in enumerate(rounds, start=1):
        here = tuple(c for c, v in zip(names, values, strict=True) if v is not None)
        reading = Reading(np.array([v for v in values if v is not None], dtype=np.float64))
        memory, found = judged(guard, memory, t, here, [reading] * len(watches))
        out.append((memory, found))
    return out


FAR, NEAR = [9.0] + [0.0] * 7, [0.0] * 8


def test_a_doubt_lasts_as_long_as_its_evidence_and_excludes_nobody():
    found = play([watch()], [FAR] * 4 + [NEAR] * 5)
    assert [bool(j.doubted[0]) for _, j in found] == [False, False, True, True, True, True, False, False, False]
    assert [m.doubted for m, _ in found] == [frozenset("a" if j.doubted[0] else "") for _, j in found]
    assert [float(j.weights[0]) for _, j in found] == [1, 1, 0, 0, 0, 0, 1, 1, 1]
    assert all(not m.excluded and not m.suspended and not j.flagged.any() for m, j in found)


def test_a_watch_that_excludes_does_so_for_good_where_the_policy_has_it():
    for policy in (Quarantine(), Turns()):
        memory, found = play([watch("exclude")], [FAR] * 3 + [NEAR] * 9, policy)[-1]
        assert memory.excluded == {"a": -1}
        assert not policy.asks("a", memory.excluded)
        assert found.weights[0] == 0


def test_a_watch_that_contains_leaves_the_client_in_the_model():
    found = play([watch("contain")], [FAR] * 4, Turns(most=0.0))
    assert [bool(j.alone[0]) for _, j in found] == [False, False, True, True]
    assert all(j.weights.all() and not j.suspects.any() and not m.doubted for m, j in found)


def test_a_client_that_is_flagged_for_good_is_in_no_doubt():
    _, found = play([watch(), watch("exclude", name="proof")], [FAR] * 3)[-1]
    assert (found.flagged[0], found.doubted[0], found.suspects[0]) == (True, False, True)


def test_an_absent_client_stays_in_doubt():
    away = [None] + [0.0] * 7
    found = play([watch()], [FAR] * 4 + [away] * 9 + [NEAR])
    assert all(m.doubted == {"a"} for m, _ in found[2:])
    assert found[-1][1].doubted[0]


def test_in_a_round_of_too_few_nothing_is_decided_or_forgotten():
    few = [0.0, 0.0, None, None, None, None, None, None]
    found = play([watch()], [FAR] * 3 + [few] * 4)
    assert all(not j.suspects.any() and j.weights.all() for _, j in found[3:])
    assert found[-1][0] == found[2][0]


def test_clients_in_doubt_count_for_the_quorum():
    """One of four in doubt must not keep the watches from judging for the rest of the run."""
    found = play([watch()], [[9.0, 0.0, 0.0, 0.0]] * 6 + [[0.0] * 4] * 8, names=NAMES[:4])
    assert [bool(j.doubted[0]) for _, j in found] == [False] * 2 + [True] * 10 + [False] * 2
    assert found[-1][0].doubted == frozenset()


@given(st.integers(3, 25), st.data())
def test_a_minority_and_one_honest_client_never_outnumber_the_others(n, data):
    f = data.draw(st.integers(0, (n - 1) // 2))
    together = np.arange(n) <= f
    assert not outnumbered(~together, np.ones(n, bool))


@pytest.mark.parametrize(("n", "f", "lasts"), [(8, 3, True), (8, 2, True), (7, 3, False), (9, 4, False), (10, 4, True)])
def test_a_doubt_that_a_slim_majority_raises_is_for_the_round(n, f, lasts):
    """The clients are left out while they stand out, and no more than 2.5 points of evidence are held against them."""
    far = [9.0] * f + [0.0] * (n - f)
    found = play([watch()], [far] * 6 + [[0.0] * n] * 3, names=tuple(map(str, range(n))))
    assert all(j.doubted.tolist() == [True] * f + [False] * (n - f) for _, j in found[2:6])
    assert all(len(m.doubted) == (f if lasts else 0) for m, _ in found[2:6])
    assert [bool(j.doubted[0]) for _, j in found[6:]] == [lasts] * 3


def test_clients_in_doubt_do_not_define_what_is_normal():
    asked = []

    class Asking(Level):
        def __call__(self, cohort):
            asked.append((cohort.round, cohort.trusted.tolist()))
            return np.array(FAR)

    guarded = fw.Warden(
        [Watch(Asking(), {"name": "evidence", "effect": 1.0}, {"name": "offset", "limit": 2.5}, 1, action="doubt")],
        "exclude",
        quorum=4,
    )
    rows = np.random.default_rng(0).normal(size=(8, 5))
    for t in range(1, 6):
        guarded.step(fw.Cohort(t, NAMES, fw.Updates.of(rows), np.full(8, 10.0)))
    everybody, others = [True] * 8, [False] + [True] * 7
    assert asked == [(1, everybody), (2, everybody), (3, everybody), (4, others), (5, others)]


def test_one_client_cannot_put_another_in_doubt_for_good():
    """Whatever one of eight sends, evidence that only rounds with it would give goes as fast as it came."""
    rng, common = np.random.default_rng(0), np.random.default_rng(1).normal(size=300)
    warden = fw.Warden.preset("auto", secret=0)
    for t in range(1, 31):
        rows = common + rng.normal(size=(8, 300))
        way = rows[1:].mean(axis=0) - rows[1]
        rows[0] = [-rows[1], 2 * rows[1], rows[1] + 0.1 * rng.normal(size=300), common + 50 * way][t % 4]
        record = warden.step(fw.Cohort(t, NAMES, fw.Updates.of(rows), np.full(8, 10.0))).record
        assert record.excluded == ()
        assert not record.flagged[1:].any()


def test_a_note_for_every_round_in_doubt():
    for most, kind in ((0.0, "left_out"), (1.0, "on_trial")):
        warden = fw.Warden([watch()], {"name": "turns", "most": most})
        guard, memory, said = warden.guard, warden.memory, []
        for t, values in enumerate([FAR] * 4 + [NEAR] * 4, start=1):
            before = memory
            memory, found = judged(guard, memory, t, NAMES, [Reading(np.array(values))])
            notes = judgement_notes(guard, before, memory, found, NAMES, np.arange(8))
            said += [(t, note.kind, note.clients) for note in notes]
            assert kind != "left_out" or all("its level is high" in str(note) for note in notes)
        assert said == [(t, kind, ("a",)) for t in (3, 4, 5, 6)]  # 4 points less half a point a round


def test_a_warning_where_clients_differ_that_are_said_to_be_alike():
    """Deviations below the median of 1 in three clients of the four closer ones: s = sqrt(3 / 4), and 2 s > 1."""
    for levels, most, differ in (
        ([-1.0] * 3 + [0.0] * 5, 0.0, True),
        (NEAR, 0.0, False),
        ([-1.0] * 3 + NEAR[:5], 0.9, False),
    ):
        guard = fw.Warden([watch()], {"name": "turns", "most": most}).guard
        memory, told = guard.blank(), []
        for t in range(1, 5):
            before = memory
            memory, found = judged(guard, memory, t, NAMES, [Reading(np.array(levels))])
            notes = judgement_notes(guard, before, memory, found, NAMES, np.arange(8))
            told += [t for note in notes if note.kind == "not_alike"]
        assert told == ([3, 4] if differ else [])  # from the third round of a client on


def test_an_action_that_does_not_exist():
    with pytest.raises(ConfigError, match="'contain', 'doubt' or 'exclude'; got 'ever'"):
        Watch("direction", action="ever")
