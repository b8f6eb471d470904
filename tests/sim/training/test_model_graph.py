"""Training one client after another under captured steps, against the plain loop: on a tape, and on a GPU."""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from fedwarden.sim.models import build_model
from fedwarden.sim.training.engine import Engine
from fedwarden.sim.training.optimizer import LocalTraining
from fedwarden.sim.training.trainer import Shard, train_sequential
from fedwarden_research.training import one_model

SEED = 3
SIZES = (23, 8, 40, 0, 23, 5)  # with batches of 8: whole ones, and one of 7 or 5 at the end of an epoch
SGD = LocalTraining(lr=0.05, batch_size=8, epochs=2)
TRAININGS = {
    "sgd": SGD,
    "momentum": replace(SGD, momentum=0.9, weight_decay=0.01),
    "fedprox": replace(SGD, momentum=0.5, proximal=0.5),
    "adam": replace(SGD, optimizer="adam", lr=1e-3, weight_decay=0.01),
    "large batches only": replace(SGD, smallest_batch=6),
}
# As in test_cuda_graph: float32 steps whose sums may be formed in another order. BatchNorm divides by the spread of as
# few as 5 numbers, which raises differences by some ten times. On a GPU the two agree in every bit, once convolutions
# may not choose their algorithm anew in every call; where they may, two plain trainings differ by up to .2.
TOLERANCE = {"rtol": 0.0, "atol": 2e-4}


@pytest.fixture(autouse=True)
def one_algorithm():
    with torch.backends.cudnn.flags(deterministic=True, allow_tf32=False):
        yield


class Branches(nn.Module):
    """BatchNorm, two dropout layers of different shapes, a residual, and a layer that nothing uses."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(0.25)
        self.second, self.later, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Dropout(0.5), nn.Linear(4 * 64, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        y = self.drop(torch.relu(self.norm(self.first(x))))
        return self.last(self.later((y + self.second(y)).flatten(1)))


class Undecided(nn.Module):
    """Asks the CPU for a number in the middle of a step, which no graph can hold."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm2d(1), nn.Linear(64, 4)

    def forward(self, x):
        y = self.norm(x)
        return self.last((y if y.sum().item() > -1e9 else -y).flatten(1))


graphs = cache(one_model)


def residual():
    return build_model("resnet18", {"width": 4}, (1, 8, 8), 4, 0)


def engine_of(model, training=SGD, device="cpu"):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(sum(SIZES), 1, 8, 8, generator=generator)
    y = torch.randint(4, (len(x),), generator=generator)
    rows = np.split(np.random.default_rng(5).permutation(len(x)), np.cumsum(SIZES)[:-1])
    clients = {f"client {i}": r for i, r in enumerate(rows)}
    return Engine(model.to(device), training, SEED, x, y, clients, 0, torch.device(device))


def both(engine, params, round, clients, home="cpu"):
    """The clients' models after one round, (clients, d) each: with captured steps, and without."""
    shards = [Shard(c, engine.x, engine.y, engine.rows[c]) for c in clients]
    outs = [torch.full((len(clients), engine.layout.d), torch.nan, device=params.device) for _ in range(2)]
    given = (params, shards, round, engine.seed, outs[0])
    graphs(engine).train(*given, torch.device(home))
    train_sequential(
        engine.model, engine.layout, params, shards, engine.training, round, engine.seed, outs[1], engine.task,
        torch.device(home),
    )  # fmt: skip
    return outs


@pytest.mark.parametrize(("name", "model"), [*((name, Branches) for name in TRAININGS), ("momentum", residual)])
def test_captured_is_sequential(device, name, model):
    """Two rounds of all clients, the second from the mean of the first one's models; every size is captured by then."""
    training = TRAININGS[name]
    engine = engine_of(model(), training, device)
    params = engine.layout.flatten(engine.model.state_dict())
    for t in (1, 2):
        before = params.clone()
        captured, plain = both(engine, params, t, list(engine.rows), home=device)
        torch.testing.assert_close(captured, plain, **TOLERANCE)
        assert torch.equal(params, before)
        params = captured.mean(dim=0)
    assert sorted(graphs(engine).graphs) == ([7, 8] if training.smallest_batch == 6 else [5, 7, 8])
    assert all(m.training for m in engine.model.modules())


def test_the_first_batch_of_a_size_is_taken_step_by_step_and_the_next_client_s_is_replayed(device):
    engine = engine_of(Branches(), device=device)
    params = engine.layout.flatten(engine.model.state_dict())
    kept = []
    for client in ("client 1", "client 1", "client 0", "client 4"):
        both(engine, params, 1, [client])
        kept.append(sorted(graphs(engine).graphs))
    assert kept == [[], [8], [8], [7, 8]]


def test_dropout_is_on_and_left_as_it_was(device):
    engine = engine_of(Branches(), device=device)
    params = engine.layout.flatten(engine.model.state_dict())
    captured, _ = both(engine, params, 1, ["client 2"])
    for layer in (engine.model.drop, engine.model.later):
        layer.p = 0.0
    without, _ = both(replace(engine), params, 1, ["client 2"])
    assert (captured - without).abs().max() > 1e-3
    assert not engine.model.drop._forward_hooks


def test_a_model_that_cannot_be_captured_is_trained_all_the_same(device, monkeypatch):
    if device == "cpu":  # a tape can hold anything

        class Refused:
            def __enter__(self):
                raise RuntimeError("operation not permitted when stream is capturing")

            def __exit__(self, *error): ...

        monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: Refused())
    engine = engine_of(Undecided(), device=device)
    params = engine.layout.flatten(engine.model.state_dict())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for t in (1, 2, 3):
            captured, plain = both(engine, params, t, list(engine.rows))
            torch.testing.assert_close(captured, plain, **TOLERANCE)
    assert sum("step by step" in str(w.message) for w in told) == 1
    assert not graphs(engine).graphs
