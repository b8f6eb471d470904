"""Who forges what: members act together, see what they may, and only while they are on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedwarden.core import registry
from fedwarden.sim.adversary import Adversary, Round
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario

SEEN = []
D = 6


@dataclass(frozen=True)
class Spy:
    """Remembers what it was shown and sends zeros."""

    knowledge: str = "own"

    def forge(self, view, rng):
        SEEN.append((view, int(rng.integers(10**9))))
        return torch.zeros_like(view.own)


@dataclass(frozen=True)
class Spoiler:
    """Asks the guard and then cannot go on."""

    knowledge: ClassVar[str] = "all"

    def forge(self, view, rng):
        view.accepts(torch.full_like(view.own, 9.0))
        raise ValueError("no room to hide")


@dataclass(frozen=True)
class Seer:
    """Asks what would become of two rows and sends the second, if that makes no difference to what it was told."""

    knowledge: ClassVar[str] = "all"

    def forge(self, view, rng):
        before = view.outcome(-view.own)
        view.outcome(100.0 * view.own)
        after = view.outcome(-view.own)
        assert torch.equal(before.update, after.update)
        SEEN.append(after)
        return -view.own


@dataclass(frozen=True)
class Neither:
    """Not an attack at all."""


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """For this test only: the laws run on whatever is registered."""
    SEEN.clear()
    for kind in (Spy, Spoiler, Seer, Neither):
        monkeypatch.setitem(registry._entries["attack"], f"test_{kind.__name__.lower()}", kind)


def adversary(*attacks, n=6, measured=((0, D),), seed=0):
    table = {"seed": seed, "rounds": 9, "data": {"clients": n}, "attacks": list(attacks)}
    return Adversary.of(load_scenario(table), measured, torch.device("cpu"))


def play(who, clients="012345", t=1, previous=None, judge=None):
    """The models of one round before and after; client i trains to i + 1 everywhere from a global model of 0.5."""
    models = torch.tensor([[float(c) + 1] * D for c in clients])
    params = torch.full((D,), 0.5)
    notes = who.act(Round(models, params, previous, t, list(clients), judge or (lambda m: np.ones(len(m), bool))))
    return models, notes


def test_members_act_together_and_see_their_own():
    models, notes = play(adversary({"name": "test_spy", "clients": [1, 4]}), t=3)
    ((view, _),) = SEEN
    assert view.own.tolist() == [[1.5] * D, [4.5] * D]
    assert (view.others, view.accepts, view.outcome, view.previous) == (None, None, None, None)
    assert view.clients == ()
    assert view.params.tolist() == [0.5] * D
    assert (view.round, view.n, notes) == (3, 6, [])
    assert models[:, 0].tolist() == [1, 0.5, 3, 4, 0.5, 6]


def test_who_knows_all_sees_the_honest_ones_only():
    """Neither its own, nor those of another attack, nor those who poison their data."""
    attacks = [
        {"name": "test_spy", "clients": [1], "knowledge": "all"},
        {"name": "sign_flip", "clients": [2]},
        {"name": "label_flip", "clients": [3]},
    ]
    play(adversary(*attacks))
    ((view, _),) = SEEN
    assert view.others[:, 0].tolist() == [0.5, 4.5, 5.5]
    assert view.clients == ("0", "4", "5")
    assert view.outcome is None  # nobody told


def test_those_no_longer_asked_take_no_part():
    who = adversary({"name": "test_spy", "clients": [1, 4]})
    play(who, clients="0245")
    assert SEEN[0][0].own[:, 0].tolist() == [4.5]
    play(who, clients="025")
    assert len(SEEN) == 1


def test_the_last_change_of_the_global_model_is_known():
    play(adversary({"name": "test_spy", "clients": [1]}, measured=((1, 3), (5, 6))), previous=torch.arange(6.0))
    assert SEEN[0][0].previous.tolist() == [1.0, 2.0, 5.0]
    assert SEEN[0][0].own.shape == (1, 3)


def test_attacks_of_one_client_follow_each_other():
    models, _ = play(
        adversary({"name": "scaling", "clients": [0], "factor": 4.0}, {"name": "sign_flip", "clients": [0]})
    )
    assert models[0].tolist() == [0.5 - 4 * 0.5] * D


def test_draws_depend_on_seed_round_and_attack():
    pair = [{"name": "test_spy", "clients": [0]}, {"name": "test_spy", "clients": [1]}]
    for seed, t in ((0, 1), (0, 2), (1, 1), (0, 1)):
        play(adversary(*pair, seed=seed), t=t)
    draws = [draw for _, draw in SEEN]
    assert len(set(draws)) == 6
    assert draws[6:] == draws[:2]


def test_the_guard_is_asked_about_the_whole_round():
    asked = []

    def judge(models):
        asked.append(models.clone())
        return models[:, 0].numpy() < 2.0

    models, _ = play(adversary({"name": "adaptive", "clients": [1, 2], "steps": 3, "limit": 8.0}), judge=judge)
    assert all(m[[0, 3, 4, 5], 0].tolist() == [1, 4, 5, 6] for m in asked)
    assert len(asked) == 1  # the furthest it may go was accepted at once
    mean = (0.5 + 3.5 + 4.5 + 5.5) / 4
    assert models[1:3, 0].tolist() == pytest.approx([2 - 8 * mean, 3 - 8 * mean])


def test_who_knows_all_knows_what_the_other_attackers_send():
    asked = []

    def judge(models):
        asked.append(models[:, 0].tolist())
        return np.ones(len(models), bool)

    attacks = [{"name": "adaptive", "clients": [1]}, {"name": "sign_flip", "clients": [2]}]
    play(adversary(*attacks), judge=judge)
    assert asked[0][2] == 0.5 - 2.5


@pytest.mark.parametrize(
    "guard",
    [
        {"preset": "auto"},
        {"preset": "none", "aggregator": {"name": "multi_krum", "f": 2}},
        {"preset": "none", "aggregator": "centered_clipping"},
    ],
)
def test_who_knows_all_is_told_what_becomes_of_the_round(guard):
    table = {"rounds": 4, "data": {"clients": 8}, "model": {"name": "mlp", "hidden": [8]}, "train": {"workers": 1}}
    attack = {"name": "test_seer", "clients": [2, 5]}
    federation = Federation(load_scenario({**table, "attacks": [attack], "guard": guard}))
    params, rounds = federation.params, 0
    for record in federation.play():
        change, params = federation.params - params, federation.params
        where = [i for i, client in enumerate(record.client_ids) if client in ("2", "5")]
        if not where:  # excluded and no longer asked
            continue
        rounds += 1
        torch.testing.assert_close(SEEN[-1].update, change, rtol=1e-4, atol=1e-6)
        assert SEEN[-1].weights.tolist() == record.weights[where].tolist()
        assert not (SEEN[-1].accepted & record.flagged[where]).any()
    assert len(SEEN) == rounds > 1


def test_an_attack_that_cannot_be_made_is_noted_and_the_trained_models_are_sent():
    models, notes = play(adversary({"name": "test_spoiler", "clients": [1, 2]}))
    assert list(map(str, notes)) == ["attack 'test_spoiler' was not carried out: no room to hide"]
    assert models[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    _, notes = play(adversary({"name": "alie", "count": 4}))
    assert list(map(str, notes)) == [
        "attack 'alie' was not carried out: alie needs n >= 3 clients and 0 < f <= n / 2 attackers; got n=6, f=4"
    ]
