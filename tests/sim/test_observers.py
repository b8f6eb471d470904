"""An observer sees what its party sees and nothing else, and changes nothing."""

import pytest
import torch

from fedwarden.sim.data.world import build_world
from fedwarden.sim.federation import Federation
from fedwarden.sim.observers import own_samples
from fedwarden.sim.scenario import load_scenario

TABLE = {
    "rounds": 3,
    "data": {"clients": 2, "limit": 90},
    "model": {"name": "mlp", "hidden": [4]},
    "train": {"workers": 1, "group": 1},
    "guard": {"preset": "none"},
}


def federation_of(**changes):
    return Federation(load_scenario({**TABLE, **changes}))


def play(federation, *clients):
    seen = {client: [] for client in clients}
    federation.observers.update({client: seen[client].append for client in clients})
    records = list(federation.play())
    return seen, records


def test_two_clients_can_take_each_other_out_of_the_average():
    seen, _ = play(federation_of(), "0", "1")
    for mine, theirs in zip(seen["0"], seen["1"], strict=True):
        assert (mine.n, mine.share) == (2, 0.5)
        assert torch.equal(mine.params, theirs.params)
        assert not torch.equal(mine.own, theirs.own)
        torch.testing.assert_close((mine.params - mine.share * mine.own) / (1 - mine.share), theirs.own)


def test_shares_follow_the_examples_and_an_outsider_sends_nothing():
    seen, records = play(federation_of(data={"clients": 2, "limit": 91}), "0", "outsider")
    assert [s.share for s in seen["0"]] == [46 / 91] * 3
    assert [(s.own, s.share, s.n) for s in seen["outsider"]] == [(None, 0.0, 2)] * 3
    assert [s.round for s in seen["0"]] == [r.round for r in records] == [1, 2, 3]


def test_who_sat_out_sent_nothing():
    table = {**TABLE, "data": {"clients": 4}, "train": {**TABLE["train"], "participation": 0.5}, "rounds": 6}
    seen, records = play(Federation(load_scenario(table)), "0")
    assert [s.own is not None for s in seen["0"]] == ["0" in r.client_ids for r in records]
    assert {s.n for s in seen["0"]} == {2}
    assert len({s.own is None for s in seen["0"]}) == 2


def test_an_observer_changes_nothing_even_if_it_writes_into_what_it_sees():
    plain, watched = federation_of(), federation_of()
    list(plain.play())

    def spoil(sight):
        sight.params.zero_()
        sight.own.zero_()

    watched.observers["0"] = spoil
    list(watched.play())
    assert torch.equal(plain.params, watched.params)


def test_updates_are_rewritten_on_their_way():
    federation = federation_of(rounds=1)
    start = federation.params.clone()
    trained, _ = play(federation_of(rounds=1), "1")
    federation.senders["1"] = lambda t, update: -update
    seen, _ = play(federation, "0", "1")
    torch.testing.assert_close(seen["1"][0].own - start, start - trained["1"][0].own)
    torch.testing.assert_close(federation.params, (seen["0"][0].own + seen["1"][0].own) / 2)
    federation = federation_of(rounds=1)
    federation.publisher = lambda t, update: update * 0 + t
    list(federation.play())
    torch.testing.assert_close(federation.params, start + 1)


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_a_probe_is_of_ones_own_samples_those_held_back_first(validation):
    world = build_world(load_scenario({**TABLE, "data": {"clients": 2, "limit": 90, "validation": validation}}))
    x, y = own_samples(world, "1", 5, seed=3)
    assert (x.shape, y.shape) == ((5, 1, 8, 8), (5,))
    pool = world.x[world.held_out["1"] if validation else world.rows["1"]]
    assert all(any(torch.equal(sample, other) for other in pool) for sample in x)
    assert len(own_samples(world, "1", 10**6, seed=3)[1]) == len(pool)
    assert torch.equal(own_samples(world, "1", 5, seed=3)[0], x)


@pytest.mark.parametrize(("who", "held"), [("outsider", "own"), ("1", "test")])
def test_an_outsider_has_samples_of_the_test_data_and_a_client_where_asked(who, held):
    world = build_world(load_scenario(TABLE))
    x, _ = own_samples(world, who, 7, seed=0, held=held)
    assert all(any(torch.equal(sample, other) for other in world.data.x_test) for sample in x)
