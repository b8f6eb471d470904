"""Tuning: the objective, and a search that only replays."""

import sys

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.errors import ConfigError, MissingExtra
from fedwarden.core.types import WatchRecord
from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.tune import Observed, grade, observe, to_tune, tunable, tune, with_values
from fedwarden_research.papers.pid_made_tuning import speed

TINY = {
    "rounds": 2,
    "data": {"clients": 6},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"workers": 1},
    "attacks": [{"name": "label_flip", "count": 1}],
}


def made_up(seed, n=12, f=3, rounds=6):
    """Distances of honest clients around 1; the first f lie a little farther out in every round."""
    rng = np.random.default_rng(seed)
    ids = tuple(str(i) for i in range(n))
    records = []
    for t in range(1, rounds + 1):
        signal = rng.normal(1.0, 0.15, n) + np.where(np.arange(n) < f, 0.5, 0.0)
        watch = WatchRecord("centroid_distance", signal, signal, np.inf, np.zeros(n, bool))
        records.append(fw.RoundRecord(t, ids, np.ones(n), np.ones(n), (watch,), np.zeros(n, bool)))
    return Observed(records, {str(i): range(1, rounds + 1) for i in range(f)})


def test_a_grade_counts_clients_and_attacker_rounds():
    run = made_up(0, n=12, f=3, rounds=6)
    nobody = grade([run], fw.Warden([fw.Watch("centroid_distance", rule={"name": "k_sigma", "k": 9.0})], "quarantine"))
    assert (nobody.f1, nobody.caught, nobody.wronged) == (0.0, 0, 0)
    assert (nobody.let_in, nobody.attacks) == (18, 18)

    def far(scores, test):  # from round 3 on, exactly the attackers
        limit = 1.25 if test >= 3 else np.inf
        return fw.Verdict(scores > limit, limit)

    for record in run.records:
        record.watches[0].signal[:] = np.where(np.arange(12) < 3, 2.0, 1.0)
    exact = grade([run, run], fw.Warden([fw.Watch("centroid_distance", rule=far, start_round=1)], "quarantine"))
    assert (exact.f1, exact.caught, exact.attackers, exact.wronged) == (1.0, 6, 6, 0)
    assert (exact.let_in, exact.attacks) == (2 * 3 * 2, 2 * 18)
    assert exact.value > nobody.value
    assert (exact.left_out, exact.honest) == (0, 2 * 9 * 6)
    assert speed(exact) == -12 / 36
    for record in run.records:
        record.watches[0].signal[11] = 2.0  # and one honest client, in rounds 3 to 6
    wrong = grade([run], fw.Warden([fw.Watch("centroid_distance", rule=far, start_round=1)], "quarantine"))
    assert (wrong.left_out, wrong.honest, wrong.wronged) == (4, 54, 1)
    assert speed(wrong) == pytest.approx(-6 / 18 - 4 / 54)


def test_the_search_is_repeatable_and_not_worse_than_what_was_given():
    runs, warden = [made_up(s) for s in range(2)], fw.Warden.preset("pid_made")
    assert set(tunable(warden)) == {"history.kp", "history.ki", "history.kd", "rule.k"}
    first, second = (tune(runs, warden, trials=25, seed=3) for _ in range(2))
    assert first.best == second.best
    assert first.after.f1 > first.before.f1  # 3 of 12 mask each other at k = 2.33
    assert grade(runs, first.warden) == first.after
    assert grade(runs, with_values(warden, first.best)) == first.after


def test_what_was_given_is_kept_where_nothing_is_better():
    run = made_up(0, f=1)
    for record in run.records:
        record.watches[0].signal[0] = 50.0
    warden = fw.Warden.preset("pid_made")
    tuned = tune([run], warden, trials=5, seed=0)
    assert tuned.before.f1 == 1.0
    assert tuned.best == tuned.defaults


def test_nobody_is_excluded_while_observing():
    scenario = to_tune(load_scenario({**TINY, "guard": {"preset": "pid_made", "options": {"k": 0.1}}}))
    run = observe(scenario, seed=5)
    assert run.truth == {"0": {1, 2}}
    assert [r.round for r in run.records] == [1, 2]
    assert all((r.weights > 0).all() and len(r.client_ids) == 6 and r.excluded == () for r in run.records)


def test_the_guard_to_tune_has_a_pid_and_excludes_for_good():
    own = to_tune(load_scenario({**TINY, "guard": {"preset": "pid_made", "options": {"k": 3.0}, "policy": "observe"}}))
    assert own.guard.build().watches[0].rule == fw.KSigma(3.0)
    other = to_tune(load_scenario({**TINY, "guard": {"watches": [{"signal": "centroid_distance"}]}}))
    for scenario in (own, other):
        warden = scenario.guard.build()
        assert isinstance(warden.watches[0].history, fw.PID)
        assert type(warden.policy).__name__ == "Quarantine"
    with pytest.raises(ConfigError, match="attackers"):
        to_tune(load_scenario({**TINY, "attacks": []}))


def test_without_optuna_the_command_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedwarden\[tune\]'"):
        to_tune(load_scenario(TINY))
