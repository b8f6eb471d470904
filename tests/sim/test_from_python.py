"""A federation from data in memory, in one call."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

import fedwarden as fw
from fedwarden.cli import main
from fedwarden.core.errors import ConfigError, FedwardenError
from fedwarden.sim.data.own import check, held_back, of_clients
from fedwarden.sim.data.sources import DataError
from fedwarden.sim.federation import Fruitless
from fedwarden.store.ledger import Ledger
from own_hospitals import NAMES, by_name, hospitals


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A workspace of its own."""
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "home"))
    return tmp_path


class Items(TorchDataset):
    """Pairs, one at a time."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]), int(self.y[i])


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def test_one_call_in_python_names_the_client_in_doubt(place):
    model = net()
    before = [p.clone() for p in model.parameters()]
    run = fw.simulate(by_name(), model=model, guard="auto", rounds=6, epochs=2, batch_size=8)
    assert list(run.summary["excluded"]) == []
    assert repr(run) == (
        f"run {run.run}, run: No client was excluded. 1 of {len(NAMES)} clients was in doubt: west on trial in 3 of 6 "
        "rounds."
    )
    assert run.summary["accuracy"] > 0.7
    assert set(run.records[0].client_ids) == set(NAMES)
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))
    assert any(not torch.equal(p, q) for p, q in zip(before, run.model.parameters(), strict=True))
    with Ledger(place / "home") as ledger:
        assert ledger.run(run.run).state == "done"
        assert ledger.run(run.run).config["data"]["names"] == list(NAMES)  # in the order that was given


def test_all_ways_to_give_the_same_samples_give_the_same_bits(place):
    pairs = by_name()
    ways = (
        pairs,
        {name: (torch.from_numpy(x), torch.from_numpy(y)) for name, (x, y) in pairs.items()},
        {name: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for name, (x, y) in pairs.items()},
        {name: Items(x, y) for name, (x, y) in pairs.items()},
    )
    found = [fw.simulate(clients, model=net(), rounds=1).params for clients in ways]
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_a_list_numbers_the_clients_and_a_test_set_is_tested_on():
    x, y, _ = hospitals()
    run = fw.simulate(list(by_name().values()), model={"name": "mlp", "hidden": [4]}, test=(x[:7], y[:7]), rounds=1)
    assert run.records[0].client_ids == tuple(map(str, range(8)))
    assert (run.summary["accuracy"] * 7) % 1 == pytest.approx(0, abs=1e-9)
    assert len(of_clients(list(by_name().values()), (x[:7], y[:7])).x_train) == 320


def test_labels_that_are_floats_are_regressed():
    clients = {name: (x, x[:, 0]) for name, (x, _) in by_name().items()}
    run = fw.simulate(clients, model=nn.Linear(4, 1), rounds=10, batch_size=8)
    assert run.summary["accuracy"] is None
    assert run.summary["loss"] < 0.5  # of a variance of 1
    whole = {name: (x, y) for name, (x, y) in by_name().items()}
    assert fw.simulate(whole, model=nn.Linear(4, 1), task="regression", rounds=1, lr=0.05).summary["loss"] is not None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((np.empty((0, 4)), np.empty(0)), "client south: expected at least one sample; got none"),
        ((np.zeros((9, 3), np.float32), np.zeros(9, int)), r"client south: expected samples of shape \(4,\)"),
        ((np.zeros((9, 4), np.float32), np.zeros(8, int)), r"client south: .* got shapes \(9, 4\) and \(8,\)"),
        ((np.full((9, 4), np.inf, np.float32), np.zeros(9, int)), "client south, row 0: expected finite features"),
        ((np.zeros((9, 4), np.float32), np.full(9, -2)), "client south, row 0: expected a label of at least 0; got -2"),
        ((np.zeros(9, np.float32), np.zeros(9, int)), r"client south: .* got shapes \(9,\) and \(9,\)"),
        ((np.zeros((9, 4), np.float32), np.zeros(9)), "client south: expected labels of int64, .* got float64"),
        (5, "client south: expected a pair"),
        ([1, 2, 3], "client south: expected a pair"),
    ],
)
def test_a_mistake_in_one_client_is_told_with_its_name(change, said):
    with pytest.raises(DataError, match=said):
        fw.simulate({**by_name(), "south": change}, model=net())


def test_other_mistakes_in_one_call():
    with pytest.raises(DataError, match="at least one client"):
        fw.simulate({})
    with pytest.raises(ConfigError, match=r"gives \(2, 3\) for 2 samples .* expected \(2, 2\)"):
        fw.simulate(by_name(), model=nn.Linear(4, 3))
    with pytest.raises(ConfigError, match=r"cannot take the samples .* shape \(4,\)"):
        fw.simulate(by_name(), model=nn.Linear(5, 2))
    with pytest.raises(ConfigError, match="no parameters to train"):
        fw.simulate(by_name(), model=nn.Flatten())
    with pytest.raises(ConfigError, match="did you mean 'auto'"):
        fw.simulate(by_name(), model=net(), guard="autto")
    with pytest.raises(Fruitless, match=r"none of its 1 round changed the model; .*krum needs"):
        fw.simulate(by_name(), model=net(), rounds=1, guard={"preset": "none", "aggregator": {"name": "krum", "f": 7}})


def test_a_run_from_memory_cannot_be_resumed_from_its_ledger(capsys):
    fw.simulate(by_name(), model=net(), rounds=1)
    assert main(["run", "--resume", "1", "--set", "rounds=2"]) == 2
    assert "data in a program's memory" in capsys.readouterr().err


def test_a_data_set_of_ones_own_is_checked():
    x, y = torch.zeros(6, 2), torch.arange(6) % 3
    sound = fw.Dataset(x, y, x, y, 3, (np.arange(3), np.arange(3, 6)), names=("a", "b"))
    assert check(sound, "mine") is sound
    for changed, said in (
        (fw.Dataset(x, y, x, y, 2, sound.clients, names=sound.names), r"mine: expected labels from 0 to 1 .*a has 2"),
        (fw.Dataset(x.double(), y, x, y, 3), r"mine: expected float32 features"),
        (fw.Dataset(x, y, x[:, :1], y, 3), r"training and test samples of one shape; got \(2,\) and \(1,\)"),
        (fw.Dataset(x, y, x[:0], y[:0], 3), r"expected test samples with one label each"),
        (fw.Dataset(x, y, x, y, 3, (np.array([7]),)), r"client 0: expected rows from 0 to 5"),
        (fw.Dataset(x, y, x, y, 3, sound.clients, names=("a",)), r"a name for each of 2 clients; got 1"),
        (fw.Dataset(x, y, x, y, 3, sound.clients, names=(1, 2)), r"a different text as the name of each client"),
        (fw.Dataset(x, y, x, y, 3, sound.clients, names=("a", "a")), r"a different text as the name of each client"),
        (x, r"expected a Dataset, .* got Tensor"),
    ):  # fmt: skip
        with pytest.raises(FedwardenError, match=said):
            check(changed, "mine")


def test_a_client_with_few_rows_keeps_one_to_train_on():
    owners = np.array(["a"] * 10 + ["b"] * 2 + ["c"])
    test = held_back(owners, 13, 0.9, "mine")
    assert [int((~test)[owners == name].sum()) for name in "abc"] == [1, 1, 1]
