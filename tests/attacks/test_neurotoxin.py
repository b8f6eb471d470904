"""Neurotoxin leaves alone what the last change of the model moved most."""

import numpy as np
import pytest
import torch

from fedwarden.attacks import View
from fedwarden.core.registry import make
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario

D = 100
OWN = torch.from_numpy(np.random.default_rng(0).normal(size=(3, D)))
PREVIOUS = torch.from_numpy(np.random.default_rng(1).normal(size=D))


def forge(previous, **options):
    view = View(OWN, None, torch.zeros(D), previous, 2, 9)
    return make("attack", "neurotoxin", **options).forge(view, np.random.default_rng(0))


@pytest.mark.parametrize(("top", "count"), [(0.0, 0), (0.05, 5), (0.3, 30)])
@pytest.mark.parametrize("previous", [PREVIOUS, None])
def test_the_largest_coordinates_of_the_last_change_are_not_touched(top, count, previous):
    change = OWN.mean(dim=0) if previous is None else previous
    largest = sorted(range(D), key=lambda k: -abs(float(change[k])))[:count]
    sent = forge(previous, top=top)
    for k in range(D):
        assert sent[:, k].tolist() == ([0.0] * 3 if k in largest else OWN[:, k].tolist())


def test_with_a_backdoor_on_the_same_clients():
    """The backdoor is trained first, and what is sent of it is projected; it still works on the mean."""
    both = [{"name": "backdoor", "count": 3}, {"name": "neurotoxin", "count": 3, "top": 0.1}]
    table = {"rounds": 6, "data": {"clients": 6}, "model": {"name": "mlp", "hidden": [16]}, "attacks": both}
    federation = Federation(load_scenario({**table, "guard": {"preset": "none"}, "train": {"workers": 1}}))
    records = list(federation.play())
    assert federation.truth.keys() == {"0", "1", "2"}
    assert records[-1].metrics["attack_success"] > 0.5
