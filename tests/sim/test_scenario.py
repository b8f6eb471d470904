"""Scenarios: every key is known, attackers are whom the file says, the guard is its preset with what replaces it."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.config import override
from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import describe, names
from fedwarden.policies.basic import Quarantine
from fedwarden.rules.robust import Offset
from fedwarden.sim.scenario import Scenario, load_scenario

WATCH = {"signal": "centroid_distance"}


@pytest.mark.parametrize(
    ("table", "where", "key", "meant"),
    [
        ({"ruonds": 3}, "the file", "ruonds", "rounds"),
        ({"data": {"cleints": 3}}, "data", "cleints", "clients"),
        ({"train": {"momentun": 0.9}}, "train", "momentun", "momentum"),
        ({"guard": {"prest": "auto"}}, "guard", "prest", "preset"),
        ({"guard": {"admission": {"count_ration": 2}}}, "guard.admission", "count_ration", "count_ratio"),
        ({"guard": {"watches": [{**WATCH, "rul": "gesd"}]}}, "guard.watches.0", "rul", "rule"),
        ({"guard": {"watches": [WATCH, {**WATCH, "start": 3}]}}, "guard.watches.1", "start", "start_round"),
    ],
)
def test_an_unknown_key_names_the_nearest(table, where, key, meant):
    with pytest.raises(ConfigError, match=f"unknown key '{key}' in {where}; did you mean '{meant}'"):
        load_scenario(table)


@pytest.mark.parametrize(
    ("guard", "message"),
    [
        ({"preset": "pid-mode"}, "no preset 'pid-mode'; did you mean 'pid_made'"),
        ({"preset": "pid_made", "options": {"kpp": 1}}, "'pid_made' has no option 'kpp'; did you mean 'kp'"),
        ({"policy": "quarantin"}, "no policy 'quarantin'; did you mean 'quarantine'"),
        ({"watches": [{**WATCH, "history": {"name": "pid", "kq": 1}}]}, "'pid' has no option 'kq'"),
        ({"watches": [{**WATCH, "rule": {"name": "k_sigma", "k": -1}}]}, "k must be positive; got -1"),
        ({"watches": [WATCH, WATCH]}, "every watch needs a name of its own"),
    ],
)
def test_an_unknown_name_or_option_in_the_guard(guard, message):
    with pytest.raises(ConfigError, match=message):
        load_scenario({"guard": guard}).guard.build()


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"seed": -1}, "seed"),
        ({"data": {"validation": 1.0}}, "data.validation"),
        ({"train": {"optimizer": "sdg"}}, "train.optimizer"),
        ({"guard": {"combine": "some"}}, "guard.combine"),
        ({"model": 3}, "model"),
        ({"model": {"hidden": [3]}}, "model.name"),
        ({"guard": {"watches": [{}]}}, "guard.watches.0.signal"),
    ],
)
def test_a_value_outside_of_its_range_names_its_key(table, key):
    with pytest.raises(ConfigError, match=rf"^(key ')?{key}[':]"):
        load_scenario(table)


def attackers(n, *attacks, seed=0):
    scenario = load_scenario({"seed": seed, "data": {"clients": n}, "attacks": list(attacks)})
    return {c: [a.options.get("fraction") for a in found] for c, found in sorted(scenario.attackers().items())}


def flip(fraction=1.0, **who):
    return {"name": "label_flip", "fraction": fraction, **who}


def test_attackers_are_counted_or_listed():
    assert attackers(6) == {}
    assert list(attackers(6, flip(count=2))) == [0, 1]
    assert attackers(6, flip(count=0)) == {}
    assert list(attackers(6, flip(clients=[5, 2, 5]))) == [2, 5]
    assert attackers(6, flip(clients=[])) == {}
    assert attackers(6, flip(0.5, count=2), flip(0.1, clients=[1, 3])) == {0: [0.5], 1: [0.5, 0.1], 3: [0.1]}


def test_a_share_of_the_clients_is_drawn_by_the_seed():
    for n, share, size in ((10, 0.3, 3), (10, 0.0, 0), (10, 1.0, 10), (7, 0.25, 2)):  # 1.75 is nearest to 2
        assert len(attackers(n, flip(share=share))) == size
    draws = [tuple(attackers(20, flip(share=0.25), seed=s)) for s in range(40)]
    assert draws == [tuple(attackers(20, flip(share=0.25), seed=s)) for s in range(40)]
    counts = np.bincount(np.concatenate(draws), minlength=20)
    assert counts.sum() == 200
    assert counts.min() > 0  # 40 draws of a fourth leave a given client out with probability 1e-5
    both = load_scenario({"data": {"clients": 20}, "attacks": [flip(share=0.25), flip(share=0.25)]}).attackers()
    assert len(both) > 5  # two attacks draw their own


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (flip(), "exactly one of 'clients', 'count' or 'share'"),
        (flip(count=1, share=0.1), "exactly one of"),
        (flip(share=1.1), "attacks.0.share"),
        ({"count": 1}, "attacks.0.name"),
        (flip(count=1, start=0), "attacks.0.start"),
        (flip(count=1, start=5, end=4), "cannot end in round 4 when it starts in round 5"),
        (flip(count=1, on=2), "a period needs both 'on' and 'off', at least 1 round each; got 2 and 0"),
        (flip(count=1, off=2), "a period needs both 'on' and 'off', at least 1 round each; got None and 2"),
    ],
)
def test_an_attack_or_a_schedule_that_cannot_be(attack, message):
    with pytest.raises(ConfigError, match=message):
        load_scenario({"attacks": [attack]})


def test_the_truth_is_the_rounds_in_which_a_client_attacks():
    scenario = load_scenario({
        "rounds": 8,
        "data": {"clients": 12},
        "attacks": [
            flip(clients=[0, 11], start=3, end=4),
            flip(clients=[11], start=5, on=1, off=2),
            flip(clients=[2], start=9),
            {"name": "sign_flip", "clients": [5], "ramp": 3},
        ],
    })  # fmt: skip
    assert scenario.truth() == {"0": {3, 4}, "5": set(range(1, 9)), "11": {3, 4, 5, 8}}
    assert scenario.members() == [[0, 11], [11], [2], [5]]
    assert [scenario.attacks[3].strength(t) for t in (1, 2, 4, 9)] == [0.25, 0.5, 1.0, 1.0]
    assert scenario.attacks[0].options == {"fraction": 1.0}  # the schedule is no option of the attack


@pytest.mark.parametrize("who", [{"count": 7}, {"clients": [6]}, {"clients": [-1]}])
def test_attackers_that_are_not_there(who):
    with pytest.raises(ConfigError, match="there are 6, numbered from 0"):
        attackers(6, flip(**who))


@pytest.mark.parametrize("preset", names("preset"))
def test_a_guard_without_anything_is_its_preset(preset):
    ours, want = load_scenario({"guard": {"preset": preset}}).guard.build(), fw.Warden.preset(preset)
    assert ours.watches == want.watches
    assert (ours.policy, ours.aggregator) == (want.policy, want.aggregator)
    same = {"watches": (), "secret": 0}  # without a scenario's seed each draws its own
    assert replace(ours.guard, **same) == replace(want.guard, **same)


def test_the_name_of_a_preset_is_a_guard_which_an_override_opens():
    assert load_scenario({"guard": "pid_made"}) == load_scenario({"guard": {"preset": "pid_made"}})
    opened = override({"guard": "pid_made"}, ["guard.policy=observe"])
    assert load_scenario(opened) == load_scenario({"guard": {"preset": "pid_made", "policy": "observe"}})
    with pytest.raises(ConfigError, match="pid_made"):
        load_scenario({"guard": "pid_mad"}).guard.build()
    with pytest.raises(ConfigError, match="guard: expected a table"):
        load_scenario({"guard": 3})
    with pytest.raises(ConfigError, match="named twice, 'pid_made' and 'auto'"):
        load_scenario(override({"guard": "pid_made"}, ["guard.preset=auto"]))


def test_what_a_guard_is_given_replaces_the_presets():
    guard = {
        "preset": "pid_made",
        "options": {"k": 1.5, "weighted": False},
        "policy": {"name": "quarantine", "parole": 3},
        "combine": "all",
        "joint": 0.3,
        "admission": {"count_ratio": 2.0, "max_share": 0.5},
    }
    built = load_scenario({"guard": guard}).guard.build(frozenset("ab"))
    assert built.policy == Quarantine(3)
    assert describe(built.aggregator) == {"kind": "aggregator", "name": "mean", "weighted": False}
    assert (built.guard.combine, built.guard.joint) == ("all", 0.3)
    assert built.admission == fw.Admission(2.0, 0.5, frozenset("ab"), 1000.0)
    (watch,) = built.watches
    assert (watch.rule, watch.start_round) == (fw.KSigma(1.5), 2)
    watches = [{"signal": {"name": "centroid_distance", "centre": "median"}, "rule": "offset", "name": "mine"}]
    built = load_scenario({"guard": {**guard, "watches": watches, "aggregator": "mean"}}).guard.build()
    (watch,) = built.watches
    assert (watch.signal.centre, watch.rule, watch.name, watch.start_round) == ("median", Offset(), "mine", 2)
    assert describe(watch.history)["name"] == "raw"
    assert built.aggregator.weighted
    assert load_scenario({"guard": {**guard, "watches": []}}).guard.build().watches == ()
    assert load_scenario({"guard": {"preset": "auto", "newcomers": True}}).guard.build().guard.newcomers is True
    assert load_scenario({"guard": {"admission": {"norm_ratio": 5}}}).guard.build().admission.norm_ratio == 5


def test_a_component_is_a_name_or_a_table():
    short = load_scenario({"model": "mlp", "data": {"partition": "iid"}})
    long = load_scenario({"model": {"name": "mlp"}, "data": {"partition": {"name": "iid"}}})
    assert short == long == Scenario()
    assert load_scenario({"model": {"name": "mlp", "hidden": [3]}}).model.options == {"hidden": [3]}


def test_modules_of_the_users_own_are_imported(tmp_path, monkeypatch):
    (tmp_path / "an_extension_of_mine.py").write_text("LOADED = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_scenario({"imports": ["an_extension_of_mine"]})
    assert sys.modules.pop("an_extension_of_mine").LOADED
    with pytest.raises(ConfigError, match="cannot import 'not_there_at_all'"):
        load_scenario({"imports": ["not_there_at_all"]})
