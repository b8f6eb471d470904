"""The hybrid sparse attack: how far each parameter goes, and which go far."""

import math

import numpy as np
import pytest
import torch

from fedwarden.attacks import View
from fedwarden.attacks.optimised import alie_z
from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden_research.attacks.sparse import sensitive

D, F, N = 200, 4, 12
HONEST = torch.from_numpy(np.random.default_rng(0).normal(0.2, 1.0, size=(N - F, D)))
PARAMS = torch.from_numpy(np.random.default_rng(1).normal(size=D))


def forge(**options):
    view = View(torch.zeros(F, D, dtype=HONEST.dtype), HONEST, PARAMS, None, 1, N)
    return make("attack", "sparse", **options).forge(view, np.random.default_rng(0))


@pytest.mark.parametrize("z", [None, 0.7])
def test_the_most_sensitive_go_further_and_the_rest_as_in_alie(z):
    sent = forge(density=0.05, scale=3.0, z=z)
    assert all(torch.equal(row, sent[0]) for row in sent)
    salience = [abs(float(PARAMS[k]) * float(HONEST[:, k].mean())) for k in range(D)]
    hit = sorted(range(D), key=lambda k: -salience[k])[:10]  # 5 % of 200
    for k in range(D):
        column = HONEST[:, k].tolist()
        mean = sum(column) / len(column)
        sigma = math.sqrt(sum((v - mean) ** 2 for v in column) / len(column))
        steps = 3.0 if k in hit else alie_z(N, F) if z is None else z
        assert float(sent[0, k]) == pytest.approx(mean - steps * sigma)


def test_at_least_one_parameter_is_hit():
    assert sensitive(torch.ones(10), torch.arange(10.0), share=0.001).nonzero().tolist() == [[9]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": 0.0}, "density lies above 0 and up to 1; got 0.0"),
        ({"density": 1.5}, "density lies above 0 and up to 1; got 1.5"),
        ({"knowledge": "none"}, "knowledge is 'own' or 'all'"),
    ],
)
def test_options_outside_of_their_range(options, message):
    with pytest.raises(ConfigError, match=message):
        make("attack", "sparse", **options)
