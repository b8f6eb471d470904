"""A rehearsed change is what a federation with that change would have shown, bit for bit."""

import pytest

from fedwarden.audit import Auditor
from fedwarden.sim.branches import Measures, ObserverSettings, rehearse
from fedwarden.sim.federation import Federation
from fedwarden.sim.observers import own_samples
from fedwarden.sim.scenario import AttackConfig, load_scenario

TABLE = {
    "rounds": 5,
    "data": {"clients": 3, "limit": 600, "reserve": 300, "partition": {"name": "parity", "size": 60}},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"optimizer": "adam", "lr": 0.01, "workers": 1, "group": 1},
    "guard": {"preset": "none"},
}
SHIFT = {"name": "label_shift", "even": 0.9, "clients": [2], "start": 4}
SETTINGS = ObserverSettings(("0", "1"), probe=20)


class Halving:
    """Halves what is sent, and counts how often."""

    def __init__(self):
        self.times = 0

    def __call__(self, t, update):
        self.times += 1
        return update / 2


@pytest.fixture(scope="module")
def rehearsed():
    changes = {"none": [], "shift": [AttackConfig(**SHIFT)], "again": [AttackConfig(**SHIFT)]}
    return rehearse(load_scenario(TABLE), 4, changes, SETTINGS)


def straight(attacks, client):
    """The same federation from the first to the last round, and what a client's auditor sees of it."""
    federation = Federation(load_scenario({**TABLE, "attacks": attacks}))
    samples, labels = own_samples(federation.world, client, 20, 0)
    auditor, seen = Auditor(federation.model, samples, labels, n=3), []
    federation.observers[client] = lambda s: seen.extend(auditor.observe(s.round, s.params, s.own, s.share))
    return seen, {r.round: r.metrics["accuracy"] for r in federation.play()}


@pytest.mark.parametrize(("branch", "attacks"), [("none", []), ("shift", [SHIFT])])
def test_a_branch_is_the_whole_run(rehearsed, branch, attacks):
    before, found = rehearsed
    for client in SETTINGS.observers:
        seen, accuracy = straight(attacks, client)
        assert repr(before.seen[client] + found[branch].seen[client]) == repr(seen)
        assert {**before.accuracy, **found[branch].accuracy} == accuracy


def test_branches_differ_from_the_change_on_and_do_not_touch_each_other(rehearsed):
    before, found = rehearsed
    assert sorted(before.accuracy) == [1, 2, 3]
    assert sorted(found["none"].accuracy) == [4, 5]
    assert repr(found["shift"].seen) == repr(found["again"].seen) != repr(found["none"].seen)


def test_a_change_before_the_branch_is_refused():
    early = [AttackConfig(**{**SHIFT, "start": 2})]
    with pytest.raises(ValueError, match="starts in round 4 or later; 'label_shift' starts before"):
        rehearse(load_scenario(TABLE), 4, {"early": early}, SETTINGS)


def test_measures_keep_their_memory_in_each_branch_and_are_not_shared():
    mine = Halving()
    rounds = []
    rehearse(
        load_scenario(TABLE), 4, {"a": [], "b": []}, ObserverSettings(("0",), 8, ("weights",)), Measures({"1": mine}),
        on_round=lambda name, t: rounds.append((name, t)),
    )  # fmt: skip
    assert mine.times == 3  # the branches go on with copies
    assert rounds == [("", 1), ("", 2), ("", 3), ("a", 4), ("a", 5), ("b", 4), ("b", 5)]
