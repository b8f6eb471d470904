"""Training under a captured CUDA graph against the stacked trainer; and when it is chosen.

The comparison runs twice: on a GPU where there is one, and everywhere on a tape that stands in for the graph.
"""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fedwarden.sim.training.engine as module
from fedwarden.sim.training.engine import Engine, choose_group, train_stacked
from fedwarden.sim.training.optimizer import LocalTraining
from fedwarden_research import training as captured_training
from fedwarden_research.training.cuda_graph import KEPT, Captured

graphs = cache(captured_training.stacked)

SEED = 11
SIZES = (23, 7, 40, 0, 16, 3)  # with batches of 8: 3, 1, 5, 0, 2 and 1 steps an epoch
SGD = LocalTraining(lr=0.1, batch_size=8, epochs=2)
TRAININGS = {
    "sgd": SGD,
    "momentum": replace(SGD, momentum=0.9),
    "fedprox": replace(SGD, momentum=0.5, weight_decay=0.01, proximal=0.5),
    "adam": replace(SGD, optimizer="adam", lr=1e-3),
    "adam with decay": replace(SGD, optimizer="adam", lr=1e-3, weight_decay=0.01, proximal=0.1),
}
# Both ways take the same float32 steps; only the order of a sum may differ, where a product over fewer clients runs
# through another kernel. A sum of k = 8 to 36 terms of size 1 is then off by up to k * 2^-24 = 2e-6, and 10 steps of
# 0.1 * 2e-6 add up to 2e-6, with a momentum of 0.9 to at most ten times that.
TOLERANCE = {"rtol": 0.0, "atol": 2e-5}
# Adam divides by the gradient's own size, so that the error of a step is its learning rate times the relative error of
# the gradient: 10 * 1e-3 * 2e-6 where the gradient is 1, and 2e-5 where it is 1e-3.


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.Tanh(), nn.Linear(9, 4))


def cnn():
    """Two dropout layers of different shapes and shares, one over images."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Dropout(0.25), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 8), nn.Tanh(),
        nn.Dropout(0.5), nn.Linear(8, 4),
    )  # fmt: skip


def engine_of(model, training=SGD, sizes=SIZES, device="cpu", group=1):
    """Clients of unequal sizes that hold images of 1x6x6; the data stays on the CPU, the model is on the device."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(sum(sizes), 1, 6, 6, generator=generator)
    y = torch.randint(4, (len(x),), generator=generator)
    rows = np.split(np.random.default_rng(5).permutation(len(x)), np.cumsum(sizes)[:-1])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    clients = {f"client {i}": r for i, r in enumerate(rows)}
    return Engine(model.to(device), training, SEED, x, y, clients, group, torch.device(device))


def both(engine, params, round, clients):
    """The clients' models after one round, (clients, d) each: under a captured graph, and stacked."""
    shards = [module.Shard(c, engine.x, engine.y, engine.rows[c]) for c in clients]
    outs = [torch.full((len(clients), engine.layout.d), torch.nan, device=params.device) for _ in range(2)]
    graphs(engine).train(params, shards, round, engine.seed, outs[0])
    train_stacked(engine.stacked, engine.layout, params, shards, engine.training, round, engine.seed, outs[1])
    return outs


@pytest.mark.parametrize("model", [mlp, cnn])
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
def test_captured_is_stacked(device, training, model):
    """Three rounds of all clients, each from the mean of the last one's models."""
    engine = engine_of(model(), training, device=device)
    params = engine.layout.flatten(engine.model.state_dict())
    for t in (1, 2, 3):
        before = params.clone()
        captured, stacked = both(engine, params, t, list(engine.rows))
        torch.testing.assert_close(captured, stacked, **TOLERANCE)
        assert torch.equal(params, before)
        moved = (captured - params).abs().amax(dim=1)
        assert [bool(m > 10 * TOLERANCE["atol"]) for m in moved] == [size > 0 for size in SIZES]
        params = captured.mean(dim=0)


def test_a_step_is_captured_once_for_every_number_of_clients(device, monkeypatch):
    """Rounds of the same number share a graph, also with clients in between that train longer; a few are kept."""
    made = []
    start = Captured.__init__
    monkeypatch.setattr(Captured, "__init__", lambda self, *args: (made.append(args[-1]), start(self, *args))[1])
    engine = engine_of(cnn(), TRAININGS["fedprox"], device=device)
    params = engine.layout.flatten(engine.model.state_dict())
    ids = list(engine.rows)
    for t, clients in enumerate([ids[:2], ids[2:], ids[2:4], ids[:2], ids, ids[:1], ids[:2]]):
        captured, stacked = both(engine, params, t, clients)
        torch.testing.assert_close(captured, stacked, **TOLERANCE)
        params = captured.mean(dim=0)
    assert made == [2, 4, 6, 1]
    assert list(graphs(engine)._kept) == [6, 1, 2]
    assert len(graphs(engine)._kept) == KEPT


def test_the_engine_trains_under_the_graph_on_a_gpu_alone(monkeypatch):
    """What the engine calls, by device and group size; a model without a stacked form goes one by one everywhere."""
    called = []
    for name in ("train_stacked", "train_sequential"):
        monkeypatch.setattr(module, name, lambda *_, name=name: called.append(name))

    def captured(group, name):
        trains = SimpleNamespace(train=lambda *_: called.append(name))
        return [SimpleNamespace(load=lambda: lambda engine: trains)]

    monkeypatch.setattr(module, "entry_points", captured)
    monkeypatch.setattr(module, "fits", lambda *_: True)
    without = nn.Sequential(nn.Flatten(), nn.Linear(36, 4, bias=False))
    for model, group, device in [
        (mlp(), 1, "cuda"), (mlp(), 1, "cpu"), (mlp(), 0, "cuda"), (mlp(), 0, "cpu"), (without, 1, "cuda"),
        (without, 1, "cpu"),
    ]:  # fmt: skip
        engine = replace(engine_of(model, group=group), device=torch.device(device))
        engine.train(torch.zeros(engine.layout.d), 1, ["client 0"], torch.empty(1, engine.layout.d))
    wanted = ["stacked", "train_stacked", "one_model", "train_sequential", "one_model", "train_sequential"]
    assert called == wanted


def test_data_that_a_gpu_has_no_room_for_stays_where_it_is(monkeypatch):
    data, gpu = torch.zeros(10), torch.device("cuda")
    for free in (2 * data.nbytes, 2 * data.nbytes - 1):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 0))
        assert module.fits(data, gpu) == (free == 2 * data.nbytes)


@pytest.mark.parametrize("trainer", ["auto", "stacked"])
def test_a_gpu_takes_one_group(trainer):
    engine = replace(engine_of(mlp()), device=torch.device("cuda"))
    assert choose_group(engine, trainer, None) == 1
    assert choose_group(engine, trainer, 4) == 4
    assert choose_group(engine, "sequential", None) == 0
    without = replace(engine, model=nn.Sequential(nn.Flatten(), nn.Linear(36, 4, bias=False)))
    assert choose_group(without, trainer, None) == 0


def test_a_gpu_trains_all_clients_at_once():
    engine = replace(engine_of(mlp()), device=torch.device("cuda"))
    assert engine.groups(["client 2", "client 0", "client 4"]) == [[0, 1, 2]]
    assert engine.groups([]) == []
    assert replace(engine, group=0).groups(["client 0", "client 2"]) == [[1], [0]]  # one by one, the largest first
