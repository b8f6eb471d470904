"""Honest clients that differ: they stay honest, and the run measures what the model learns of them."""

import numpy as np
import pytest
import torch

from fedwarden.attacks.pixels import invert
from fedwarden.core.errors import ConfigError
from fedwarden.sim.adversary import Adversary, Round
from fedwarden.sim.data.world import build_world
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario

SMALL = {
    "rounds": 2,
    "data": {"clients": 5, "limit": 300},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"workers": 1, "group": 2},
    "guard": {"preset": "none"},
}


def scenario_of(**changes):
    table = dict(SMALL)
    for key, value in changes.items():
        table[key] = {**table[key], **value} if isinstance(value, dict) and isinstance(table.get(key), dict) else value
    return load_scenario(table)


def played(scenario):
    """The records of a run that nobody keeps, and its federation."""
    federation = Federation(scenario)
    return list(federation.play()), federation


def test_clients_that_differ_are_honest():
    scenario = scenario_of(
        differences=[{"name": "invert", "clients": [0, 1]}, {"name": "sign_flip", "share": 0.4}],
        attacks=[{"name": "label_flip", "clients": [1, 3]}],
    )
    assert scenario.truth() == {"1": {1, 2}, "3": {1, 2}}
    assert list(scenario.attackers()) == [1, 3]
    assert scenario.members() == [[1, 3]]
    words = [(config.word, config.name, number, len(members)) for config, number, members in scenario.plans()]
    assert words == [("difference", "invert", 0, 2), ("difference", "sign_flip", 1, 2), ("attack", "label_flip", 0, 2)]


def test_a_difference_moves_no_random_number_of_an_attack():
    attacks = [{"name": "label_flip", "share": 0.4}, {"name": "gaussian", "share": 0.4}]
    plain, different = (
        scenario_of(attacks=attacks, differences=d) for d in ([], [{"name": "feature_noise", "clients": [0, 1, 2]}])
    )
    assert plain.members() == different.members()
    worlds = [build_world(s) for s in (plain, different)]
    labels = [[w.y[w.rows[str(c)]].tolist() for c in range(5)] for w in worlds]
    assert labels[0] == labels[1]
    sent = []
    for scenario in (plain, different):
        models = torch.ones(5, 6)
        who = Adversary.of(scenario, ((0, 6),), torch.device("cpu"))
        who.act(Round(models, torch.zeros(6), None, 1, list("01234"), lambda m: np.ones(len(m), bool)))
        sent.append(models)
    assert torch.equal(*sent)


def test_all_knowing_attackers_count_clients_that_differ_as_honest():
    """The copier sends what the first honest client sends, which is that client's own update rounded to two bits."""
    scenario = scenario_of(
        differences=[{"name": "quantised", "bits": 2, "clients": [0]}], attacks=[{"name": "copy", "clients": [2]}]
    )
    who = Adversary.of(scenario, ((0, 3),), torch.device("cpu"))
    assert who.attackers == {"2"}
    models = torch.tensor([[1.0, 0.4, -0.9], [3.0, 3.0, 3.0], [5.0, 5.0, 5.0]])
    who.act(Round(models, torch.zeros(3), None, 1, list("012"), lambda m: np.ones(len(m), bool)))
    assert models.tolist() == [[1, 0, -1], [3, 3, 3], [1, 0, -1]]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "invert"}, "a difference needs exactly one of 'clients', 'count' or 'share'"),
        ({"name": "invert", "count": 1, "claims": 3}, "honest client claims the examples that it has; got claims = 3"),
        ({"name": "invert", "count": 1, "start": 3, "end": 2}, "a difference cannot end in round 2"),
    ],
)
def test_a_difference_that_cannot_be(table, message):
    with pytest.raises(ConfigError, match=message):
        scenario_of(differences=[table])


def test_messages_name_the_difference():
    with pytest.raises(ConfigError, match="difference 'invert' names clients"):
        scenario_of(differences=[{"name": "invert", "clients": [5]}]).plans()
    with pytest.raises(ConfigError, match=r"difference 'fresh_samples' on client 0: needs .* raise data\.reserve"):
        build_world(scenario_of(differences=[{"name": "fresh_samples", "clients": [0]}]))


def test_inputs_change_mid_run():
    scenario = scenario_of(rounds=4, differences=[{"name": "invert", "clients": [1], "start": 3}])
    world = build_world(scenario)
    assert world.changed(2) == {}
    rows = world.changed(3)["1"]
    before = world.x[world.rows["1"]]
    assert torch.equal(world.x[rows], before.max() - before)
    assert torch.equal(world.y[rows], world.y[world.rows["1"]])


def test_recall_and_own_kind_are_measured_on_the_test_set():
    scenario = scenario_of(differences=[{"name": "invert", "clients": [0]}], recalls=[3, 5])
    records, federation = played(scenario)
    metrics, data = records[-1].metrics, federation.world.data
    with torch.no_grad():
        answers, inverted = (federation.model(x).argmax(dim=1) for x in (data.x_test, invert(data.x_test)))
    recalls = [float((answers[data.y_test == label] == label).double().mean()) for label in (3, 5)]
    assert metrics["class_recall"] == pytest.approx(np.mean(recalls))
    assert metrics["own_kind_accuracy"] == pytest.approx(float((inverted == data.y_test).double().mean()))


def test_a_class_that_is_not_there_has_no_recall():
    with pytest.raises(ConfigError, match="no sample of class 11"):
        Federation(scenario_of(recalls=[11]))


def test_single_clients_train_in_their_own_way():
    """The learning rate of one client is three times that of the rest: so is its update of a single step."""
    train = {"lr": 0.1, "epochs": 1, "batch_size": 1000}
    plain, own = (
        Federation(scenario_of(train={**train, "own": table})) for table in ({}, {"3": {"lr": 0.3}, "1": {"epochs": 2}})
    )
    updates = []
    for federation in (plain, own):
        with federation._pool() as pool:
            updates.append(pool.train(federation.params, 1, list("01234"), {}).clone() - federation.params)
    for i in (0, 2, 4):
        torch.testing.assert_close(updates[0][i], updates[1][i], rtol=0, atol=1e-6)
    torch.testing.assert_close(3 * updates[0][3], updates[1][3], rtol=0, atol=1e-5)
    assert float(updates[1][1].norm()) > 1.5 * float(updates[0][1].norm())  # two steps instead of one


@pytest.mark.parametrize("trainer", ["sequential", "stacked"])
def test_only_clients_that_train_alike_are_trained_together(trainer):
    own = {"0": {"optimizer": "adam", "lr": 0.01}, "4": {"optimizer": "adam", "lr": 0.01}}
    federation = Federation(scenario_of(train={"trainer": trainer, "group": 5, "own": own}))
    groups = federation.engine.groups(list("01234"))
    assert sorted(i for group in groups for i in group) == [0, 1, 2, 3, 4]
    assert all(set(group) <= {0, 4} or set(group) <= {1, 2, 3} for group in groups)
    with pytest.raises(ValueError, match="trained together train alike; got 2 trainings"):
        federation.engine.train(federation.params, 1, ["0", "1"], torch.empty(2, len(federation.params)))


def test_a_client_joins_late():
    records, _ = played(scenario_of(rounds=3, data={"joins": {"2": 3, "0": 2}}))
    assert [r.client_ids for r in records] == [("1", "3", "4"), ("0", "1", "3", "4"), ("0", "1", "2", "3", "4")]


@pytest.mark.parametrize(("where", "table"), [("data.joins", {"joins": {"x": 3}}), ("train.own", {"own": {"7": {}}})])
def test_only_clients_that_are_there_can_differ(where, table):
    with pytest.raises(ConfigError, match=f"{where}: there is no client"):
        Federation(scenario_of(**{where.partition(".")[0]: table}))


def test_clients_are_named_by_name_or_number():
    scenario = scenario_of(data={"names": list("abcde"), "joins": {"b": 2, "3": 2}})
    records, _ = played(scenario)
    assert records[0].client_ids == ("a", "c", "e")


def test_a_recipe_must_leave_a_batch():
    with pytest.raises(ConfigError, match="smallest_batch is at most batch_size"):
        scenario_of(train={"smallest_batch": 4, "own": {"0": {"batch_size": 2}}})
