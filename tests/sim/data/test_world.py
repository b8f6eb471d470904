"""The clients' data: poisoned copies of their own, rows by round, and a reserve that nobody holds."""

import numpy as np
import pytest
import torch

from fedwarden.core.errors import ConfigError
from fedwarden.sim.data.world import build_world
from fedwarden.sim.scenario import load_scenario

PAIRS = {"name": "label_flip", "mode": "pairwise"}


def world_of(rounds=6, seed=0, attacks=(), **data):
    return build_world(load_scenario({"rounds": rounds, "seed": seed, "data": data, "attacks": list(attacks)}))


@pytest.fixture
def overlapping(tmp_path, monkeypatch):
    """Three clients that share rows of one data set: 0 with 1, and 1 with 2."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, size=(40, 6, 6), dtype=np.uint8), np.arange(40) % 2
    rows = np.stack([np.arange(0, 20), np.arange(10, 30), np.arange(20, 40)])
    np.savez(tmp_path / "pneumoniamnist.npz", x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    np.savez(tmp_path / "pneumoniamnist_clients.npz", rows=rows)
    monkeypatch.setenv("FEDWARDEN_DATA", str(tmp_path))
    return {"dataset": "pneumoniamnist", "partition": "given", "clients": 3}, rows, x, y


def test_an_attacker_poisons_copies_of_its_own(overlapping):
    data, rows, x, y = overlapping
    attacks = [{"name": "label_flip", "clients": [1]}, {"name": "feature_noise", "clients": [2], "snr": -10.0}]
    world = build_world(load_scenario({"data": data, "attacks": attacks}))
    for client in (0, 1, 2):
        mine = world.rows[str(client)]
        clean_y, clean_x = y[rows[client]], x[rows[client]] / 255
        assert len(mine) == 20
        if client == 1:
            assert (world.y[mine].numpy() == 1 - clean_y).all()  # two classes: every label is the other
        else:
            assert (world.y[mine].numpy() == clean_y).all()
        noisy = np.abs(world.x[mine][:, 0].numpy() - clean_x).max() > 0.1
        assert noisy == (client == 2)
    assert (world.data.y_train.numpy() == y).all()
    assert (world.y[:40].numpy() == y).all()


def test_a_client_without_data_is_an_error():
    with pytest.raises(ConfigError, match=r"1,438 clients need .* 'digits' has 1,437: use fewer clients"):
        build_world(load_scenario({"data": {"clients": 1438}}))


def labels_in(world, t, client="0"):
    return world.y[world.changed(t).get(client, world.rows[client])].numpy()


def test_a_schedule_only_chooses_rows():
    attack = {**PAIRS, "clients": [0], "start": 2, "ramp": 2, "end": 5}
    world, clean = world_of(clients=4, attacks=[attack]), world_of(clients=4)
    before = clean.y[clean.rows["0"]].numpy()
    flipped = [labels_in(world, t) != before for t in range(1, 8)]
    n = len(before)
    assert [int(f.sum()) for f in flipped] == [0, round(n / 3), round(2 * n / 3), n, n, 0, 0]
    assert (flipped[1] <= flipped[2]).all()  # a stronger attack takes more and never others
    for t, moved in enumerate(flipped, 1):
        assert (labels_in(world, t)[moved] == 9 - before[moved]).all()
    assert len(world.y) == len(clean.y) + n  # one copy, whatever the schedule


def test_attacks_of_one_client_come_and_go_one_by_one():
    """First only to class 3, then both, then only in pairs."""
    attacks = [
        {"name": "label_flip", "mode": "constant", "target": 3, "clients": [0], "end": 2},
        {**PAIRS, "clients": [0], "start": 2, "end": 3},
    ]
    world, clean = world_of(clients=4, attacks=attacks), world_of(clients=4)
    before = clean.y[clean.rows["0"]].numpy()
    assert set(labels_in(world, 1)) == {3}
    assert set(labels_in(world, 2)) == {6}
    assert (labels_in(world, 3) == 9 - before).all()
    assert (labels_in(world, 4) == before).all()


def test_what_a_client_holds_back_is_poisoned_with_the_rest():
    attack = {**PAIRS, "clients": [1], "start": 3}
    world, clean = (world_of(clients=4, validation=0.2, attacks=a) for a in ([attack], []))
    want = clean.y[clean.held_out["1"]]
    assert torch.equal(world.y[world.held_in(1)["1"]], want)
    assert torch.equal(world.y[world.held_in(3)["1"]], 9 - want)
    assert all((world.held_in(3)[c] == clean.held_out[c]).all() for c in "023")


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards"])
def test_nobody_holds_the_reserve(partition):
    world, whole = (world_of(clients=5, partition=partition, validation=0.1, reserve=n) for n in (300, 0))
    held = np.concatenate([*world.rows.values(), *world.held_out.values()])
    assert len(world.reserve) == 300
    assert sorted([*held, *world.reserve]) == list(range(1437))
    assert len(whole.reserve) == 0
    assert not np.array_equal(world.reserve, np.sort(world.reserve))  # any part of it is random
    sizes = [len(world.rows[c]) + len(world.held_out[c]) for c in world.rows]
    if partition == "iid":
        assert max(sizes) - min(sizes) <= 1
    assert not np.array_equal(world.reserve, world_of(clients=5, seed=1, reserve=300).reserve)


def test_a_reserve_of_everything():
    with pytest.raises(ConfigError, match=r"data.reserve = 2000 leaves nothing of 1437 training samples"):
        world_of(clients=2, reserve=2000)


def test_clients_that_shift_share_the_reserve_out():
    attack = {"name": "label_shift", "even": 0.7, "clients": [0, 2], "start": 4}
    world = world_of(clients=6, reserve=900, attacks=[attack])
    sizes = {c: len(r) for c, r in world.rows.items()}
    moved = world.changed(4)
    assert sorted(moved) == ["0", "2"]
    pools = [{bytes(row) for row in world.x[moved[c]].numpy()} for c in "02"]
    clean = {bytes(row) for row in world.data.x_train[world.reserve].numpy()}
    assert all(pool <= clean for pool in pools)
    assert not pools[0] & pools[1]
    for client in "02":
        assert len(moved[client]) == sizes[client]
        even = (world.y[moved[client]] % 2 == 0).sum()
        assert even == round(0.7 * sizes[client])


def test_a_reserve_that_is_too_small():
    attack = {"name": "label_shift", "count": 1}
    with pytest.raises(
        ConfigError, match=r"attack 'label_shift' on client 0: needs \d+ samples of even .*data.reserve"
    ):
        world_of(clients=4, reserve=20, attacks=[attack])


def test_a_limit_takes_random_samples_of_the_training_data():
    whole, small, other = world_of(clients=4), world_of(clients=4, limit=200), world_of(clients=4, seed=1, limit=200)
    assert len(small.data.y_train) == sum(map(len, small.rows.values())) == 200
    assert torch.equal(small.data.x_test, whole.data.x_test)
    known = {bytes(x.numpy()): int(y) for x, y in zip(whole.x, whole.y, strict=True)}
    assert all(known[bytes(x.numpy())] == y for x, y in zip(small.x, small.y, strict=True))
    assert torch.equal(world_of(clients=4, limit=200).x, small.x)
    assert not torch.equal(other.x, small.x)
    assert not torch.equal(small.x, whole.x[:200])  # random, not the first


def test_what_is_poisoned_leaves_the_reserve_clean():
    attacks = [{"name": "label_flip", "count": 4}]
    world, clean = world_of(clients=4, reserve=100, attacks=attacks), world_of(clients=4, reserve=100)
    assert np.array_equal(world.reserve, clean.reserve)
    assert torch.equal(world.x[world.reserve], clean.data.x_train[clean.reserve])
    assert torch.equal(world.y[world.reserve], clean.data.y_train[clean.reserve])
