"""Layers that stay at the clients, in the simulator; and the worst client's accuracy."""

import numpy as np
import pytest
import torch

from fedwarden.core.errors import ConfigError
from fedwarden.guard.metrics import worst_accuracy
from fedwarden.sim.federation import Federation, simulate
from fedwarden.sim.scenario import load_scenario

TABLE = {
    "name": "small",
    "rounds": 3,
    "data": {"clients": 5, "validation": 0.2},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"lr": 0.2, "workers": 1},
    "guard": {"preset": "none"},
    "personal": ["3.*"],
}


def scenario(**changes):
    return load_scenario({**TABLE, **changes})


def head(federation):
    return {name: (a, b) for name, a, b in federation.engine.layout.ranges() if name.startswith("3.")}


def test_every_client_trains_its_own_head_from_where_it_left_it():
    """By hand: the shared layers of the global model with its own head, trained for one more round."""
    federation = Federation(scenario())
    start = federation.params.clone()
    rounds = federation.play()
    next(rounds)
    first, shared = dict(federation.own), federation.params.clone()
    next(rounds)
    (weight, bias) = head(federation).values()
    columns = np.r_[slice(*weight), slice(*bias)]
    for client in federation.clients:
        begin, out = shared.clone(), torch.empty(1, len(shared))
        begin[columns] = first[client]
        federation.engine.train(begin, 2, [client], out)
        torch.testing.assert_close(federation.own[client], out[0, columns], rtol=0, atol=1e-6)
    assert torch.equal(federation.params[columns], start[columns])
    assert not torch.equal(federation.params, start)
    assert len({tuple(values.tolist()) for values in first.values()}) == 5


def test_the_shared_layers_are_the_mean_of_the_clients():
    federation = Federation(scenario(guard={"preset": "none", "options": {"weighted": False}}))
    before = federation.params.clone()
    next(federation.play())
    made = torch.empty(5, len(before))
    for i, client in enumerate(federation.clients):
        federation.engine.train(before, 1, [client], made[i : i + 1])
    columns = slice(0, head(federation)["3.weight"][0])
    torch.testing.assert_close(federation.params[columns], made.mean(0)[columns], rtol=0, atol=1e-6)


def test_clients_whose_labels_mean_something_else_are_served_by_heads_of_their_own(tmp_path):
    """Two of eight name the digits in another order: the shared head is of no use to them."""
    worst = {}
    for personal in ([], ["3.*"]):
        table = {**TABLE, "rounds": 12, "data": {"clients": 8, "validation": 0.3}, "model": "mlp", "personal": personal}
        table["differences"] = [{"name": "label_flip", "clients": [1, 4]}]
        record = simulate(load_scenario(table), tmp_path / str(len(personal))).records[-1]
        own = record.reported["evaluate/accuracy"]
        worst[len(personal)] = record.metrics["worst_accuracy"]
        assert worst[len(personal)] == min(own.values())
        assert record.metrics["clients_accuracy"] == pytest.approx(np.mean([*own.values()]))
    assert worst[0] < 0.2
    assert worst[1] > 0.5


def test_an_attack_reaches_no_head_and_a_continued_run_ends_alike(tmp_path):
    attack = [{"name": "sign_flip", "count": 1}]
    whole = simulate(scenario(attacks=attack, guard={"preset": "auto"}), tmp_path / "whole")
    federation = Federation(scenario())
    (weight, bias) = head(federation).values()
    columns = np.r_[slice(*weight), slice(*bias)]
    assert torch.equal(whole.params[columns], federation.params[columns])
    first = load_scenario({**TABLE, "rounds": 2, "attacks": attack, "guard": {"preset": "auto"}})
    simulate(first, tmp_path / "cut")
    again = simulate(scenario(attacks=attack, guard={"preset": "auto"}), tmp_path / "cut", resume="small")
    assert torch.equal(again.params, whole.params)
    assert again.records[-1].metrics == whole.records[-1].metrics


def test_names_that_are_no_layers_are_refused():
    with pytest.raises(ConfigError, match=r"personal: no array of the model is '3\.weigth'; did you mean '3\.weight'"):
        Federation(scenario(personal=["3.weigth"]))
    with pytest.raises(ConfigError, match="personal: all parameters of the model stay at the clients; leave one"):
        Federation(scenario(personal=["*"]))


def test_an_excluded_client_is_not_the_worst():
    told = {"evaluate/accuracy": {"a": 0.9, "b": 0.1}}
    assert worst_accuracy(told, ["b"]) == {"worst_accuracy": 0.9}
    assert worst_accuracy(told, ["a", "b"]) == worst_accuracy({}, []) == {}
