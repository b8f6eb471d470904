"""Replay: the decisions of the live guard from recorded signals alone."""

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.guard.config import alter, guard_table
from fedwarden.guard.replay import find_sources, replay
from fedwarden.sim.federation import simulate
from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.whatif import compare
from fedwarden.store.ledger import Ledger

SCENARIO = {
    "rounds": 5,
    "data": {"clients": 8},
    "model": {"name": "mlp", "hidden": [16]},
    "train": {"momentum": 0.9, "batch_size": 16, "workers": 1},
    "attacks": [{"name": "label_flip", "count": 2}],
}
GUARDS = {
    "pid_made": {"preset": "pid_made", "options": {"k": 1.5}},
    "exclude": {"preset": "pid_made", "options": {"k": 1.0}, "policy": "exclude"},
    "parole": {"preset": "pid_made", "options": {"k": 1.0}, "policy": {"name": "quarantine", "parole": 1}},
    "down_weight": {"preset": "pid_made", "policy": "down_weight"},
    "auto": {"preset": "auto"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The records of each guard, read back from a ledger."""
    folder = tmp_path_factory.mktemp("home")
    found = {}
    for name, guard in GUARDS.items():
        scenario = load_scenario({**SCENARIO, "guard": guard})
        run = simulate(scenario, folder).run
        with Ledger(folder) as ledger:
            found[name] = scenario, ledger.records(run)
    return found


def same(a, b):
    """Every decision and every number behind it."""
    assert (a.round, a.client_ids, a.excluded) == (b.round, b.client_ids, b.excluded)
    assert a.flagged.tolist() == b.flagged.tolist()
    assert (a.weights > 0).tolist() == (b.weights > 0).tolist()
    for x, y in zip(a.watches, b.watches, strict=True):
        np.testing.assert_array_equal(x.scores, y.scores)
        assert x.threshold == y.threshold
        assert x.flagged.tolist() == y.flagged.tolist()


@pytest.mark.parametrize("guard", GUARDS)
def test_the_same_guard_decides_the_same(runs, guard):
    scenario, records = runs[guard]
    warden = scenario.guard.build(secret=scenario.seed)
    for recorded, replayed in zip(records, replay(records, warden), strict=True):
        same(recorded, replayed)
    assert warden.excluded == ()  # the warden itself is left as it was


@pytest.mark.parametrize("rule", ["gesd", "robust_z", {"name": "k_sigma", "k": 0.5}])
@pytest.mark.parametrize("history", ["raw", "ewma", {"name": "pid", "integral": "mean"}])
def test_another_guard_decides_as_a_live_one_fed_with_the_same_signals(runs, rule, history):
    _, records = runs["down_weight"]  # everybody was asked in every round
    signals = {r.round: r.watches[0].signal for r in records}
    live = fw.Warden([fw.Watch(lambda c: signals[c.round], history, rule, name="fed")], "quarantine")
    watch = fw.Watch("centroid_distance", history, rule)
    for record, replayed in zip(records, replay(records, fw.Warden([watch], "quarantine")), strict=True):
        rows = fw.Updates.of(np.ones((len(record.client_ids), 1)))
        same(live.step(fw.Cohort(record.round, record.client_ids, rows, record.num_examples)).record, replayed)


def test_a_rejected_reply_stays_out_of_its_round(cohort_of):
    def guard():
        return fw.Warden([fw.Watch("centroid_distance", "pid", {"name": "robust_z", "limit": 3.0}, 1)], "quarantine")

    live, records = guard(), []
    for t, broken in enumerate((None, 1, 1, None), start=1):
        rows = np.random.default_rng(t).normal(size=(6, 4))
        rows[5] += 9.0
        if broken is not None:
            rows[broken] = np.nan
        records.append(live.step(cohort_of(rows, round=t)).record)
    assert [r.client_id for r in records[1].rejected] == ["b"]
    replayed = replay(records, guard())
    for a, b in zip(records, replayed, strict=True):
        same(a, b)
    assert np.isnan(replayed[1].watches[0].scores[1])
    assert all("b" not in r.excluded for r in replayed)


def test_the_source_of_a_watch_is_found_by_its_signal():
    a, b = fw.Watch("centroid_distance", name="a"), fw.Watch("centroid_distance", name="b")
    assert find_sources([a, b], [fw.Watch("centroid_distance")]) == ("a",)
    assert find_sources([a, b], [b]) == ("b",)
    median = fw.Watch({"name": "centroid_distance", "centre": "median"})
    with pytest.raises(ConfigError, match=r"recorded: centroid_distance\(centre=mean\)"):
        find_sources([a, b], [median])


def test_a_watch_without_a_recorded_signal_is_an_error(runs):
    _, records = runs["pid_made"]
    with pytest.raises(ConfigError, match="'other'; recorded: centroid_distance"):
        replay(records, fw.Warden([fw.Watch("centroid_distance", name="other")]))


def test_altering_nothing_gives_the_same_guard():
    for name in fw.names("preset"):
        warden = fw.Warden.preset(name)
        assert guard_table(alter(warden, [])) == guard_table(warden)


def test_settings_reach_every_watch():
    two = fw.Warden([fw.Watch("centroid_distance", name="a"), fw.Watch("centroid_distance", name="b")])
    changed = alter(two, ["rule=k_sigma", "rule.k=3.0", "watches.1.history=ewma", "policy=exclude", "start_round=4"])
    assert [w.rule for w in changed.watches] == [fw.KSigma(3.0)] * 2
    assert [type(w.history).__name__ for w in changed.watches] == ["Raw", "EWMA"]
    assert [w.start_round for w in changed.watches] == [4, 4]
    with pytest.raises(ConfigError, match="did you mean 'rule'"):
        alter(two, ["rul=gesd"])


def test_compare_tells_who_has_no_signals_afterwards(runs):
    scenario, records = runs["pid_made"]
    assert records[-1].excluded
    lax = replay(records, alter(scenario.guard.build(), ["rule.k=9.0"]))
    for change in compare(records, lax):
        rounds = [r.round for r in records if change.client in r.client_ids]
        left = next((r.round for r in records if change.client in r.excluded), None)
        assert change.recorded == left
        assert change.replayed is None
        gone = left is not None and rounds[-1] < records[-1].round
        assert change.unseen_from == (rounds[-1] + 1 if gone else None)


def test_who_sent_the_same_is_known_again_and_by_whom_it_was_measured():
    """A copy that lies farther out comes first in the cohort; who lies closer to the others leads."""
    rng, warden, n = np.random.default_rng(0), fw.Warden.preset("auto"), 8
    records = []
    for t in range(1, 13):
        common = rng.normal(size=300)
        rows = common + 0.2 * rng.normal(size=(n, 300))
        rows[0] = rows[7] + 0.05 * (rows[7] - rows[1:7].mean(axis=0))
        cohort = fw.Cohort(t, tuple(map(str, range(n))), fw.Updates.of(rows), np.full(n, 10.0))
        records.append(warden.step(cohort).record)
    again = replay(records, fw.Warden.preset("auto"))
    leading = [note.values["leading"] for r in records for note in r.notes if note.kind == "copies_share"]
    assert leading == [1] * len(records)
    for live, told in zip(records, again, strict=True):
        for a, b in zip(live.watches, told.watches, strict=True):
            np.testing.assert_allclose(a.scores, b.scores, rtol=1e-12, atol=1e-12)
