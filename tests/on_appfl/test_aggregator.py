"""The guard in APPFL: its own agents, scheduler and trainer, on digits; `make appfl` runs this."""

import gc
import runpy
import threading

import numpy as np
import pytest
import torch

pytest.importorskip("appfl.agent", reason="the extra 'appfl' is not installed")

from appfl.agent import ClientAgent, ServerAgent
from appfl.algorithm.scheduler import AsyncScheduler, SyncScheduler
from omegaconf import OmegaConf

from fedwarden.appfl import GuardedAggregator
from fedwarden.core.errors import ConfigError
from fedwarden.store.ledger import Ledger
from fedwarden.store.story import RoundStory

gc.freeze()  # APPFL collects garbage for every client, and what it imports is large
N, FLIP = 10, ("0", "1", "2")
FILES = {
    "guard.py": "from fedwarden.appfl import GuardedAggregator\n",
    "model.py": """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, seed=0):
        torch.manual_seed(seed)
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
""",
    "loss.py": "from torch.nn import CrossEntropyLoss\n",
    "metric.py": "def accuracy(true, predicted):\n    return (predicted.argmax(1) == true).mean()\n",
    "data.py": """
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

def drawn():  # as they are stored, every tenth digit is often of the same class
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])

def digits(client, clients, flip):
    x, y = (part[300:][client::clients] for part in drawn())
    return TensorDataset(x, 9 - y if flip else y), None
""",
}
SHAPES = {"w": (4, 3), "b": (4,), "steps": ()}


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def federation(rounds, guarded=True, **options):
    """A server of APPFL and its clients; the server of a guarded one is changed in three lines."""
    train = {
        "trainer": "VanillaTrainer", "mode": "epoch", "num_local_epochs": 5, "optim": "SGD",
        "optim_args": {"lr": 0.1, "momentum": 0.9}, "loss_fn_path": "loss.py", "loss_fn_name": "CrossEntropyLoss",
        "train_batch_size": 32, "train_data_shuffle": True, "do_validation": False, "device": "cpu",
        "optimize_memory": False,
        "metric_path": "metric.py", "metric_name": "accuracy",
    }  # fmt: skip
    model = {"model_path": "model.py", "model_name": "Net"}
    own = {
        "aggregator_path": "guard.py",
        "aggregator": "GuardedAggregator",
        "aggregator_kwargs": {**model, **options, "optimize_memory": False},
    }
    config = {
        "client_configs": {"train_configs": train, "model_configs": {**model}},
        "server_configs": {
            "scheduler": "SyncScheduler", "num_clients": N, "num_global_epochs": rounds, "optimize_memory": False,
            "aggregator": "FedAvgAggregator", "scheduler_kwargs": {"optimize_memory": False},
            **(own if guarded else {}),
        },
    }  # fmt: skip
    server = ServerAgent(server_agent_config=OmegaConf.create(config))
    clients = []
    for i in range(N):
        data = {"dataset_path": "data.py", "dataset_name": "digits"}
        kwargs = {"client": i, "clients": N, "flip": str(i) in FLIP}
        mine = {
            "client_id": str(i),
            "train_configs": {"device": "cpu"},
            "data_configs": {**data, "dataset_kwargs": kwargs},
        }
        clients.append(ClientAgent(client_agent_config=OmegaConf.create(mine)))
        clients[-1].load_config(server.get_client_configs())
    return server, clients


def play(server, clients, rounds=None, seen=lambda params: None):
    """The loop of APPFL's serial simulation; ``seen`` is given the model of every round."""
    torch.manual_seed(0)
    first = server.get_parameters(serial_run=True)
    for client in clients:
        client.load_parameters(first)
        server.set_sample_size(client.get_id(), client.get_sample_size())
    while not server.training_finished() and rounds != 0:
        futures = []
        for client in clients:
            client.train()
            params = client.get_parameters()
            params, told = params if isinstance(params, tuple) else (params, {})
            futures.append(server.global_update(client.get_id(), params, **told))
        for client, future in zip(clients, futures, strict=True):
            client.load_parameters(future.result())
        rounds = None if rounds is None else rounds - 1
        seen(server.get_parameters(serial_run=True))
    return server.get_parameters(serial_run=True)


def accuracies(server, clients):
    """The accuracy after every round, on the digits that no client holds."""
    x, y = (part[:300] for part in runpy.run_path("data.py")["drawn"]())
    net = runpy.run_path("model.py")["Net"]()
    found = []

    def seen(params):
        net.load_state_dict(params)
        found.append(float((net(x).argmax(1) == y).float().mean()))

    play(server, clients, seen=seen)
    return found


def test_three_of_ten_that_flip_labels_are_found_by_name_and_the_model_is_kept():
    """The goal is that of a run by hand: 65.5 % by FedAvg, 96 % with the guard, and the three left out and no other."""
    plain = accuracies(*federation(20, guarded=False))
    server, clients = federation(20, client_weights_mode="sample_size", run_name="digits", options={"alike": True})
    guarded = accuracies(server, clients)
    server.aggregator.close()
    print("FedAvg ", *(f"{value:.3f}" for value in plain), "\nguarded", *(f"{value:.3f}" for value in guarded))
    assert min(plain[-5:]) < 0.655  # it swings: its best round is as good
    assert min(guarded[-5:]) >= 0.96
    with Ledger() as ledger:
        (run,) = ledger.runs()
        records = ledger.records(run.id)
    assert (run.name, run.engine, run.state, len(records)) == ("digits", "appfl", "done", 20)
    out = [{c for c, w in zip(r.client_ids, r.weights, strict=True) if w == 0} for r in records]
    assert set().union(*out) == set(FLIP)
    assert out[-5:] == [set(FLIP)] * 5
    assert set(RoundStory(records[-1]).in_doubt) == set(FLIP)


def table(seed, **changed):
    rng = np.random.default_rng(seed)
    made = {k: torch.tensor(rng.normal(0.1, 0.02, size=s), dtype=torch.float32) for k, s in SHAPES.items()}
    return {**made, "steps": torch.tensor(7), **changed}


def aggregator(**options):
    made = GuardedAggregator(aggregator_configs=OmegaConf.create(options))
    made.service.last = {k: torch.zeros(s) for k, s in SHAPES.items()} | {"steps": torch.tensor(0)}
    return made


BAD = {
    "nan": {"w": torch.full((4, 3), torch.nan)},
    "a shape": {"w": torch.zeros(3, 4)},
    "text": {"b": "rm -rf"},
    "more": {"x\x1b[2J": torch.zeros(2)},
    "floats for a counter": {"steps": torch.tensor(0.5)},
}


@pytest.mark.parametrize("bad", [*BAD, "no table"])
def test_what_one_client_sends_costs_it_the_round_and_nobody_else(bad):
    made = aggregator()
    models = {i: table(i) for i in range(6)} | {"odd": [1] if bad == "no table" else table(9, **BAD[bad])}
    told = {
        "loss": {0: 0.5, "odd": float("nan")},
        "_chunk_idx": {"odd": 0},
        "staleness": {"odd": 3},
        "self": {"odd": 1},
    }
    new = made.aggregate(models, **told)
    record = made.service.record
    assert [r.client_id for r in record.rejected] == ["odd"]
    assert {c for c, w in zip(record.client_ids, record.weights, strict=True) if w > 0} == set("012345")
    assert record.reported["train/loss"] == {"0": 0.5}
    honest = torch.stack([models[i]["w"] for i in range(6)])
    assert honest.min() < new["w"].mean() < honest.max()
    assert new["steps"].dtype == torch.int64
    assert int(new["steps"]) == 7
    made.close()


def test_threads_of_a_server_share_one_ledger():
    """A scheduler aggregates in the thread of whichever client answers last."""
    made = aggregator()
    scheduler = SyncScheduler(OmegaConf.create({"num_clients": 6}), made, None)
    for _ in range(3):
        threads = [threading.Thread(target=scheduler.schedule, args=(i, table(i))) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    made.close()
    with Ledger() as ledger:
        assert ledger.last_round(1) == 3


def test_a_server_that_is_started_again_goes_on_with_the_guard_and_the_model():
    server, clients = federation(4, resume=True)
    before = play(server, clients, rounds=2)
    memory = server.aggregator.service.guard.remembered()["tests"]
    server.aggregator.close("interrupted")
    again, _ = federation(4, resume=True)
    after = again.get_parameters(serial_run=True)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert again.aggregator.service.done == 2
    assert str(again.aggregator.service.guard.remembered()["tests"]) == str(memory)
    again.aggregator.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wardn": "auto"}, "did you mean 'warden'"),
        ({"warden": "atuo"}, "did you mean 'auto'"),
        ({"client_weights_mode": "size"}, "'equal' or 'sample_size'"),
        ({"gradient_based": True}, "send_gradient: false"),
        ({"use_secure_agg": True}, "use_secure_agg: false"),
    ],
)
def test_what_cannot_be_served_is_refused_when_the_server_is_made(options, message):
    with pytest.raises(ConfigError, match=message):
        aggregator(**options)


def test_schedulers_that_hand_over_single_or_stale_models_are_refused_in_a_line():
    made = GuardedAggregator()
    with pytest.raises(ConfigError, match="set scheduler: SyncScheduler"):
        AsyncScheduler(OmegaConf.create({}), made, None).schedule("a", table(1))
    with pytest.raises(ConfigError, match="set scheduler: SyncScheduler"):
        made.aggregate(local_models={"a": table(1)}, staleness={"a": 0})
    with pytest.raises(ConfigError, match="use_model_chunking: false"):
        made.aggregate({"a": table(1)}, _chunk_idx={"a": 0})
    with pytest.raises(ConfigError, match="set model_path and model_name"):
        made.get_parameters(serial_run=True)


def test_a_pattern_that_splits_a_pair_of_adapters_is_refused_at_the_start():
    made = aggregator(adapters="lora", personal="lora_B.*")
    made.model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in ("lora_A", "lora_B")})
    with pytest.raises(ConfigError, match=r"'lora_B.weight' stays at the clients and its partner 'lora_A.weight'"):
        made.get_parameters(serial_run=True)
