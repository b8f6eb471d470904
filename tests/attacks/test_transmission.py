"""Rounded and noised updates against their definitions."""

import numpy as np
import pytest
import torch

from fedwarden.attacks import View
from fedwarden.attacks.transmission import quantise
from fedwarden.core.registry import make


def rows(k=3, d=4000):
    return torch.randn(k, d, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, k + 1)[:, None]


def forge(name, **options):
    own = rows()
    view = View(own, None, torch.zeros(own.shape[1]), None, 1, 5)
    return make("attack", name, **options).forge(view, np.random.default_rng(0))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_rounded_update_takes_few_values_and_is_at_most_half_a_step_off(bits):
    x, sent = rows(), forge("quantised", bits=bits)
    levels = 2 ** (bits - 1) - 1
    for before, after in zip(x, sent, strict=True):
        step = float(before.abs().max()) / levels
        assert len(after.unique()) <= 2 * levels + 1
        assert float((after - before).abs().max()) <= step / 2 * 1.001
        assert float(after.abs().max()) == pytest.approx(float(before.abs().max()))


def test_an_update_of_zeros_stays_one():
    assert torch.equal(quantise(torch.zeros(2, 5), 8), torch.zeros(2, 5))


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_noise_is_as_long_as_asked_and_keeps_the_update(ratio):
    x, sent = rows(), forge("noised", ratio=ratio)
    added = sent - x
    assert (added.norm(dim=1) / x.norm(dim=1)).tolist() == pytest.approx([ratio] * 3, rel=0.05)
    assert abs(float((added * x).sum() / (added.norm() * x.norm()))) < 0.05
