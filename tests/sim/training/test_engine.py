"""The engine: who is trained together."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from fedwarden.sim.models import build_model
from fedwarden.sim.training.engine import GROUP, Engine, choose_group
from fedwarden.sim.training.optimizer import LocalTraining


def engine_of(sizes=(9, 4, 12, 5, 7), group=0, model="mlp", hidden=(6,), **training):
    x = torch.rand(sum(sizes), 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(len(x)) % 3
    rows = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
    options = {"hidden": hidden} if model == "mlp" else {"width": 2}
    made = build_model(model, options, (1, 8, 8), 3, 0)
    local = LocalTraining(**{"batch_size": 4, **training})
    return Engine(made, local, 0, x, y, {str(i): r for i, r in enumerate(rows)}, group)


@pytest.mark.parametrize("group", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("cores", [1, 2, 64, None])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 20])
def test_groups_take_every_client_once(group, cores, n, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    sizes = np.random.default_rng(n).integers(1, 9, size=max(n, 1)).tolist()
    engine = engine_of(sizes, group)
    ids = [str(i) for i in reversed(range(n))]
    groups = engine.groups(ids)
    assert sorted(i for g in groups for i in g) == list(range(n))
    assert all(1 <= len(g) <= max(group, 1) for g in groups)
    assert len(groups) == n or len(groups) % (cores or 1) == 0  # as many for every core
    assert max(map(len, groups), default=0) - min(map(len, groups), default=0) <= 1
    in_order = [len(engine.rows[ids[i]]) for g in groups for i in g]
    assert in_order == sorted(in_order, reverse=True)  # alike in size


def test_groups_do_not_depend_on_the_cores_this_process_may_use(monkeypatch):
    engine = engine_of(group=2)
    found = []
    for cores in ({0}, {0, 1, 2, 3}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: cores, raising=False)
        found.append(engine.groups(list(engine.rows)))
    assert found[0] == found[1]


@pytest.mark.parametrize("group", [0, 1, 3])
def test_training_writes_the_row_of_each_client_in_the_order_asked(group):
    engine = engine_of(group=group)
    params = engine.layout.flatten(engine.model.state_dict())
    ids = ["3", "0", "4"]
    out = torch.full((3, engine.layout.d), torch.nan)
    engine.train(params, 1, ids, out)
    for client, row in zip(ids, out, strict=True):
        alone = torch.empty(1, engine.layout.d)
        engine.train(params, 1, [client], alone)
        torch.testing.assert_close(alone[0], row, rtol=0, atol=1e-6)


@pytest.mark.parametrize("group", [0, 2])
def test_data_that_changed_take_the_place_of_the_clients_own(group):
    engine = engine_of(sizes=(6, 6, 6), group=group)
    params = engine.layout.flatten(engine.model.state_dict())
    plain, other, swapped = (torch.empty(3, engine.layout.d) for _ in range(3))
    engine.train(params, 1, ["0", "1", "2"], plain)
    engine.train(params, 1, ["0", "1", "2"], other, {"1": engine.rows["2"]})
    rows = {**engine.rows, "1": engine.rows["2"]}
    engine_with = Engine(engine.model, engine.training, 0, engine.x, engine.y, rows, group)
    engine_with.train(params, 1, ["0", "1", "2"], swapped)
    assert torch.equal(other, swapped)
    assert (other != plain).any(dim=1).tolist() == [False, True, False]


def test_choosing_a_group():
    engine, large = engine_of(), engine_of(model="mlp", hidden=(1000, 1000))
    assert choose_group(engine, "sequential", None) == choose_group(engine, "sequential", 4) == 0
    assert choose_group(engine, "auto", 4) == choose_group(engine, "stacked", 4) == 4
    assert choose_group(engine, "auto", None) == choose_group(engine, "stacked", None) == GROUP
    assert choose_group(large, "auto", None) == 0
    assert choose_group(large, "stacked", None) == 1
