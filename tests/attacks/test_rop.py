"""Relocated orthogonal perturbation: its place, its angle and its length."""

import math

import numpy as np
import pytest
import torch

from fedwarden.attacks import View
from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden_research.attacks.rop import turned

D = 30
HONEST = torch.from_numpy(np.random.default_rng(1).normal(0.4, 1.0, size=(6, D)))
PREVIOUS = torch.from_numpy(np.random.default_rng(2).normal(0.2, 1.0, size=D))
MEAN = HONEST.mean(dim=0)


def forge(previous=PREVIOUS, **options):
    view = View(HONEST[:2], HONEST, torch.zeros(D), previous, 2, 8)
    sent = make("attack", "rop", **options).forge(view, np.random.default_rng(0))
    assert torch.equal(sent[0], sent[1])
    return sent[0]


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("angle", [0.0, 30.0, 90.0, 135.0, 180.0])
def test_the_angle_to_the_reference(angle):
    push = turned(PREVIOUS, angle)
    assert float(push.norm()) == pytest.approx(1.0)
    assert cosine(push, PREVIOUS) == pytest.approx(math.cos(math.radians(angle)), abs=1e-9)
    plane = torch.linalg.lstsq(torch.stack([PREVIOUS, torch.ones(D)], dim=1), push[:, None]).solution
    torch.testing.assert_close(plane[0, 0] * PREVIOUS + plane[1, 0], push)  # in the plane of the two


@pytest.mark.parametrize("relocation", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("reference", [0.0, 0.9, 1.0])
def test_place_reference_and_length(relocation, reference):
    sent = forge(relocation=relocation, reference=reference, angle=90.0, length=2.5)
    push = sent - (relocation * PREVIOUS + (1 - relocation) * MEAN)
    assert float(push.norm()) == pytest.approx(2.5)
    assert cosine(push, reference * PREVIOUS + (1 - reference) * MEAN) == pytest.approx(0.0, abs=1e-9)


def test_without_a_length_it_is_as_far_as_the_honest_ones_are():
    distances = [math.dist(row.tolist(), PREVIOUS.tolist()) for row in HONEST]
    assert float((forge() - PREVIOUS).norm()) == pytest.approx(sum(distances) / len(distances))


def test_in_the_first_round_it_starts_at_zero_and_turns_from_the_mean():
    sent = forge(previous=None, length=3.0)
    assert float(sent.norm()) == pytest.approx(3.0)
    assert float(sent @ MEAN) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relocation": 1.5}, r"relocation and reference lie in \[0, 1\]; got 1.5 and 0.9"),
        ({"reference": -0.1}, r"relocation and reference lie in \[0, 1\]"),
        ({"length": -1.0}, "length is not below 0; got -1.0"),
        ({"knowledge": "none"}, "knowledge is 'own' or 'all'"),
    ],
)
def test_options_outside_of_their_range(options, message):
    with pytest.raises(ConfigError, match=message):
        make("attack", "rop", **options)
