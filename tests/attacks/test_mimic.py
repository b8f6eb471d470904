"""All attackers are one honest client: the one that is named, or the one that stands out most."""

import numpy as np
import pytest
import torch

from fedwarden.attacks import View
from fedwarden.attacks.mimic import most_apart
from fedwarden.core.registry import make
from fedwarden.sim.adversary import Adversary, Round
from fedwarden.sim.scenario import load_scenario

HONEST = torch.from_numpy(np.random.default_rng(0).normal(0.3, 1.0, size=(6, 40))).float()


def forge(others=HONEST, clients=("2", "3", "5", "7", "8", "9"), **options):
    view = View(torch.zeros(3, 40), others, torch.zeros(40), None, 4, 9, None, clients)
    return make("attack", "mimic", **options).forge(view, np.random.default_rng(0))


@pytest.mark.parametrize(("victim", "row"), [(2, 0), (5, 2), (9, 5)])
def test_all_send_what_the_victim_sends(victim, row):
    assert torch.equal(forge(victim=victim), HONEST[row].expand(3, -1))


def test_a_victim_that_is_not_there():
    with pytest.raises(ValueError, match="client 4 sends no honest update in round 4"):
        forge(victim=4)
    with pytest.raises(ValueError, match="client 2 sends no honest update"):
        forge(None, (), victim=2)


@pytest.mark.parametrize("seed", range(5))
def test_without_a_victim_it_is_the_one_furthest_along_the_first_principal_axis(seed):
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(7, 12)) * np.linspace(1, 3, 12))
    axis = torch.linalg.svd(x - x.mean(dim=0)).Vh[0]
    assert most_apart(x) == max(range(7), key=lambda i: abs(float(x[i] @ axis)))


def test_all_send_what_the_one_that_stands_out_sends():
    assert torch.equal(forge(), HONEST[most_apart(HONEST)].expand(3, -1))


def test_in_the_simulator_a_victim_is_known_by_its_number():
    table = {"rounds": 2, "data": {"clients": 5}, "attacks": [{"name": "mimic", "clients": [0, 3], "victim": 4}]}
    adversary = Adversary.of(load_scenario(table), [(0, 2)], torch.device("cpu"))
    models = torch.arange(10.0).reshape(5, 2)
    round = Round(models, torch.zeros(2), None, 1, list("01234"), lambda m: np.ones(len(m), bool))
    assert adversary.act(round) == []
    assert models.tolist() == [[8, 9], [2, 3], [4, 5], [8, 9], [8, 9]]
    alone = Round(models[:4], torch.zeros(2), None, 1, list("0123"), lambda m: np.ones(len(m), bool))
    assert [str(note) for note in adversary.act(alone)] == [
        "attack 'mimic' was not carried out: client 4 sends no honest update in round 1"
    ]
