"""What the simulator makes of every registered attack, and what the documentation says of it."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.attacks import DataAttack, ModelAttack
from fedwarden.conformance.attacks import images, subject
from fedwarden.conformance.component import Component
from fedwarden.core.registry import lookup, make
from fedwarden.sim.adversary import Adversary, Round
from fedwarden.sim.data.world import build_world
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario

PAGE = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text(encoding="utf-8")
D = 50
EVERY = fw.names("attack")
DATA = [name for name in EVERY if isinstance(make("attack", name), DataAttack)]
MODEL = [name for name in EVERY if isinstance(make("attack", name), ModelAttack)]


def rng(seed):
    return np.random.default_rng(seed)


def test_every_attack_is_of_one_kind():
    assert sorted(DATA + MODEL) == sorted(EVERY)
    assert "label_flip" in DATA
    assert "alie" in MODEL


@pytest.mark.parametrize("name", [name for name in DATA if subject(Component("attack", name)).samples is images])
def test_data_of_strength_zero_are_clean(name):
    table = {"rounds": 3, "data": {"clients": 4, "reserve": 800}}
    attack = {"name": name, "clients": [1, 2], "start": 2, "end": 2}
    world, clean = build_world(load_scenario({**table, "attacks": [attack]})), build_world(load_scenario(table))
    for client, rows in clean.rows.items():
        assert torch.equal(world.x[world.rows[client]], clean.x[rows])
        assert torch.equal(world.y[world.rows[client]], clean.y[rows])
        assert len(world.rows[client]) == len(rows)
    assert sorted(world.changed(2)) == ["1", "2"]
    assert all(len(rows) == len(clean.rows[c]) for c, rows in world.changed(2).items())
    assert world.changed(1) == world.changed(3) == {}


def models_of(n=8, d=D):
    return torch.from_numpy(rng(3).normal(size=(n, d))).float()


def act(config, t, models, measured=((0, D),)):
    scenario = load_scenario({"rounds": 9, "data": {"clients": len(models)}, "attacks": [config]})
    adversary = Adversary.of(scenario, measured, torch.device("cpu"))
    clients = [str(i) for i in range(len(models))]

    def judge(models):
        return np.ones(len(models), bool)

    return adversary.act(Round(models, torch.zeros(models.shape[1]), None, t, clients, judge))


@pytest.mark.parametrize("name", MODEL)
def test_updates_of_strength_zero_are_as_trained_and_half_is_half_way(name):
    config, trained = {"name": name, "clients": [1, 2, 4], "start": 2, "ramp": 1, "end": 3}, models_of()
    quiet, half, full = models_of(), models_of(), models_of()
    assert act(config, 1, quiet) == act(config, 4, quiet) == []
    assert torch.equal(quiet, trained)
    act({**config, "start": 1, "end": 2, "ramp": 0}, 2, full)
    act({**config, "start": 2, "end": 3, "ramp": 1}, 2, half)
    assert torch.equal(full[[0, 3, 5, 6, 7]], trained[[0, 3, 5, 6, 7]])  # the others are left alone
    assert not torch.equal(full, trained)
    torch.testing.assert_close(half, (trained + full) / 2)


@pytest.mark.parametrize("name", MODEL)
def test_buffers_are_sent_as_trained(name):
    trained, models = models_of(), models_of()
    act({"name": name, "clients": [1, 2]}, 1, models, measured=((0, 10), (20, D)))
    assert torch.equal(models[:, 10:20], trained[:, 10:20])
    assert not torch.equal(models, trained)


def test_the_documentation_names_every_attack_of_the_package():
    ours = [name for name in EVERY if lookup("attack", name).__module__.startswith("fedwarden.")]
    assert [name for name in ours if f"\n| `{name}` |" not in PAGE] == []


def test_the_documentations_scenario_runs():
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    federation = Federation(load_scenario(tomllib.loads(toml), ["rounds=6", "train.workers=1", "train.group=5"]))
    records = list(federation.play())
    assert federation.truth == {"0": {4, 5, 6}, "1": {4, 5, 6}, "2": {3, 4}}
    assert "attack_success" in records[0].metrics
