"""Laws of every registered attack at its default options."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.attacks import DataAttack, Examples, ModelAttack, Targeted, View
from fedwarden.core.registry import lookup, make, parameters
from fedwarden.sim.adversary import Adversary, Round
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import AttackConfig, load_scenario
from fedwarden.sim.world import build_world

PAGE = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text(encoding="utf-8")
N, CLASSES, K, D = 30, 4, 3, 50
ON_TOKENS = {"token_replacement"}  # an attack on something else than images has to say so here
NEEDS_NO_DRAW = {"rotation", "blur"}  # neither does one that is not random
EVERY = fw.names("attack")
DATA = [name for name in EVERY if isinstance(make("attack", name), DataAttack)]
MODEL = [name for name in EVERY if isinstance(make("attack", name), ModelAttack)]


def samples(name, n=N, seed=0):
    rng = np.random.default_rng(seed)
    pixels = torch.from_numpy(rng.random((n, 1, 8, 8), dtype=np.float32))
    tokens = torch.from_numpy(rng.integers(0, 50, size=(n, 12)))
    return Examples(tokens if name in ON_TOKENS else pixels, rng.integers(0, CLASSES, size=n))


def poison(name, n=N, seed=1, own=None):
    return make("attack", name).poison(own or samples(name, n), samples(name, 200, 9), CLASSES, rng(seed))


def rng(seed):
    return np.random.default_rng(seed)


def view(informed=True, k=K, others=6, round=2):
    rows = torch.from_numpy(rng(0).normal(0.1, 1.0, size=(k + others, D))).float()
    previous = None if round == 1 else torch.ones(D)
    seen = rows[k:] if informed else None
    asked = (lambda rows: rows.norm(dim=1).numpy() < 10.0) if informed else None
    return View(rows[:k], seen, torch.zeros(D), previous, round, k + others, asked)


def forge(name, seed=1, seen=None):
    return make("attack", name).forge(seen or view(), rng(seed))


def test_every_attack_is_of_one_kind():
    assert sorted(DATA + MODEL) == sorted(EVERY)
    assert "label_flip" in DATA
    assert "alie" in MODEL


@pytest.mark.parametrize("name", EVERY)
def test_no_option_hides_behind_a_key_of_the_scenario(name):
    assert not set(parameters(lookup("attack", name))) & set(AttackConfig.model_fields)


@pytest.mark.parametrize("n", [1, 2, N])
@pytest.mark.parametrize("name", DATA)
def test_data_keep_their_number_shape_and_type(name, n):
    own, (x, y) = samples(name, n), poison(name, n)
    assert (x.shape, x.dtype) == (own.x.shape, own.x.dtype)
    assert (y.shape, y.dtype) == (own.y.shape, own.y.dtype)
    assert x.isfinite().all()
    assert ((y >= 0) & (y < CLASSES)).all()


@pytest.mark.parametrize("name", DATA)
def test_data_are_changed_and_only_in_the_copy(name):
    own, pool = samples(name), samples(name, 200, 9)
    x, y = make("attack", name).poison(own, pool, CLASSES, rng(1))
    assert not torch.equal(x, own.x) or not np.array_equal(y, own.y)
    for now, before in ((own, samples(name)), (pool, samples(name, 200, 9))):
        assert torch.equal(now.x, before.x)
        assert np.array_equal(now.y, before.y)


@pytest.mark.parametrize("name", DATA)
def test_the_generator_alone_decides_on_data(name):
    torch.manual_seed(0)
    first = poison(name)
    torch.manual_seed(5)
    again, other = poison(name), poison(name, seed=2)
    assert torch.equal(again.x, first.x)
    assert np.array_equal(again.y, first.y)
    same = torch.equal(other.x, first.x) and np.array_equal(other.y, first.y)
    assert same == (name in NEEDS_NO_DRAW)


@pytest.mark.parametrize("name", [n for n in DATA if isinstance(make("attack", n), Targeted)])
def test_a_goal_is_a_label_that_is_wrong(name):
    test = samples(name)
    goal = make("attack", name).goal(test, CLASSES)
    if goal is not None:
        assert len(goal.x) == len(goal.y) <= len(test.y)
        assert ((goal.y >= 0) & (goal.y < CLASSES)).all()


@pytest.mark.parametrize("name", [n for n in DATA if n not in ON_TOKENS])
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


SEEN = {
    "everything": view(),
    "their own": view(informed=False),
    "in the first round": view(round=1),
    "alone": view(k=1),
    "alone, their own": view(k=1, informed=False),
    "nobody else": view(others=0, k=5),
}


@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN)
@pytest.mark.parametrize("name", MODEL)
def test_updates_keep_their_shape_and_are_finite(name, seen):
    if name == "alie" and len(seen.own) == seen.n:
        pytest.skip("it needs honest clients to hide among")
    got = forge(name, seen=seen)
    assert (got.shape, got.dtype) == (seen.own.shape, seen.own.dtype)
    assert got.isfinite().all()


@pytest.mark.parametrize("name", MODEL)
def test_updates_are_changed_and_only_in_the_copy(name):
    seen = view()
    assert not torch.equal(forge(name, seen=seen), view().own)
    for now, before in ((seen.own, view().own), (seen.others, view().others), (seen.previous, view().previous)):
        assert torch.equal(now, before)


@pytest.mark.parametrize("name", MODEL)
def test_the_generator_alone_decides_on_updates(name):
    torch.manual_seed(0)
    first = forge(name)
    torch.manual_seed(5)
    assert torch.equal(forge(name), first)


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


@pytest.mark.parametrize("name", EVERY)
def test_the_documentation_tells_of_it_and_of_its_options(name):
    """In its row of the table; an attack from elsewhere has its own documentation."""
    factory = lookup("attack", name)
    if not factory.__module__.startswith("fedwarden."):
        pytest.skip("not of this package")
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    if "as `min_max`" not in row:
        assert all(f"`{option}" in row for option in parameters(factory))


def test_the_documentations_scenario_runs():
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    federation = Federation(load_scenario(tomllib.loads(toml), ["rounds=6", "train.workers=1", "train.group=5"]))
    records = list(federation.play())
    assert federation.truth == {"0": {4, 5, 6}, "1": {4, 5, 6}, "2": {3, 4}, "3": {6}}
    assert "attack_success" in records[0].metrics
