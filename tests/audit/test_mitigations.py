"""Mitigations: norms, deviations and schedules by hand."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fedwarden.audit.information import remove_own
from fedwarden.audit.mitigations import (
    add_noise,
    clip,
    clip_and_noise,
    epsilon,
    smooth,
)


def test_clipping_shortens_and_keeps_the_direction():
    update = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    short = clip(update, 2.0)
    assert float(short.norm()) == pytest.approx(2.0, rel=1e-6)
    assert torch.allclose(short / short.norm(), update / update.norm())
    assert torch.equal(clip(update, 1e3), update)
    assert torch.equal(clip(torch.zeros(3), 1.0), torch.zeros(3))


def test_noise_has_the_deviation_it_should_and_depends_on_the_generator_alone():
    update = torch.full((100_000,), 0.01)
    noisy = clip_and_noise(update, norm=2.0, noise=1.5, rng=torch.Generator().manual_seed(1))
    noise = noisy - clip(update, 2.0)
    assert float(noise.std()) == pytest.approx(1.5 * 2.0, rel=0.01)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.04)
    assert torch.equal(noisy, clip_and_noise(update, 2.0, 1.5, torch.Generator().manual_seed(1)))
    assert float((add_noise(update, 0.25, torch.Generator().manual_seed(2)) - update).std()) == pytest.approx(
        0.25, rel=0.01
    )


def test_smoothing_shows_a_step_bit_by_bit():
    keep, memory, shown = 0.8, None, []
    for value in [0.0] * 3 + [1.0] * 6:
        memory, sent = smooth(memory, torch.tensor([value], dtype=torch.float64), keep)
        shown.append(float(sent))
    assert shown[:3] == [0.0, 0.0, 0.0]
    assert shown[3:] == pytest.approx([1 - keep**j for j in range(1, 7)])


def test_secure_aggregation_hides_nothing_from_a_participant():
    g = torch.Generator().manual_seed(3)
    models = torch.randn(4, 50, generator=g, dtype=torch.float64)
    masks = torch.randn(4, 4, 50, generator=g, dtype=torch.float64)
    masked = models + (masks - masks.transpose(0, 1)).sum(dim=1)  # client i adds m_ij and subtracts m_ji
    assert not torch.allclose(masked, models)
    plain, secure = (remove_own(rows.mean(dim=0), models[0], 1 / 4) for rows in (models, masked))
    assert torch.allclose(plain, secure)
    assert torch.allclose(secure, models[1:].mean(dim=0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clip(torch.ones(2), 0.0), "norm above 0; got 0.0"),
        (lambda: add_noise(torch.ones(2), -1.0, torch.Generator()), "deviation of at least 0; got -1.0"),
        (lambda: smooth(None, torch.ones(2), 1.0), r"lies in \[0, 1\); got 1.0"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("noise", "rounds", "delta"), [(1.0, 1, 1e-5), (0.5, 20, 1e-6), (0.03, 20, 1e-5), (1.0, 1, 0.1)]
)
def test_epsilon_is_the_root_of_the_exact_condition(noise, rounds, delta):
    found, s = epsilon(noise, rounds, delta), noise / math.sqrt(rounds)
    p, q = norm.logcdf(0.5 / s - found * s), norm.logcdf(-0.5 / s - found * s)
    assert math.exp(p) - math.exp(found + q) == pytest.approx(delta, rel=1e-4)


def test_epsilon_against_a_numerical_integral():
    """delta = integral of max(0, p - e^eps q) for two unit Gaussians one sensitivity apart."""
    e = epsilon(2.0, 1, 1e-3)
    x = np.linspace(-40, 40, 400_001)
    gap = norm.pdf(x, 1, 2.0) - np.exp(e) * norm.pdf(x, 0, 2.0)
    assert np.trapezoid(np.maximum(gap, 0), x) == pytest.approx(1e-3, rel=1e-3)


def test_epsilon_at_the_ends():
    assert epsilon(0.0, 3) == math.inf
    assert epsilon(1e6, 1, 0.5) == 0.0
    assert epsilon(1.0, 4) == pytest.approx(epsilon(0.5, 1))  # four updates are one of half the multiplier
    with pytest.raises(ValueError, match=r"delta in \(0, 1\); got 1.0, 1 and 2"):
        epsilon(1.0, 1, 2)
