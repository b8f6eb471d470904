"""Broken images against closed forms, and a trigger that is where it was asked for."""

import math

import numpy as np
import pytest
import torch

from fedwarden.attacks import Examples
from fedwarden.attacks.pixels import add_noise, blur, rotate
from fedwarden.core.registry import make

NOTHING = Examples(torch.zeros(0, 1, 8, 8), np.zeros(0, dtype=np.int64))


def pictures(n=20, c=1, h=8, w=8):
    return torch.rand(n, c, h, w, generator=torch.Generator().manual_seed(1))


def poisoned(name, x, y=None, classes=4, seed=0, **options):
    own = Examples(x, np.arange(len(x)) % classes if y is None else y)
    return make("attack", name, **options).poison(own, NOTHING, classes, np.random.default_rng(seed))


@pytest.mark.parametrize("snr", [-10.0, 0.0, 6.0, 20.0])
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_noise_has_the_asked_ratio(snr, scale):
    x = scale * torch.rand(200, 1, 20, 20, generator=torch.Generator().manual_seed(1))
    noisy = add_noise(x, snr, torch.Generator().manual_seed(2))
    noise = (noisy - x).double()
    got = 10 * math.log10(float(x.double().square().mean() / noise.square().mean()))
    assert got == pytest.approx(snr, abs=0.1)  # 80,000 draws: a standard error of 0.02 dB
    assert abs(float(noise.mean())) < 5 * float(noise.std()) / math.sqrt(noise.numel())
    assert noisy.dtype == x.dtype


def test_feature_noise_needs_no_images():
    x = torch.rand(100, 30, generator=torch.Generator().manual_seed(0))
    noisy, _ = poisoned("feature_noise", x, snr=3.0)
    assert 10 * math.log10(float(x.square().mean() / (noisy - x).square().mean())) == pytest.approx(3.0, abs=0.5)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, -1])
def test_quarter_turns_move_every_pixel_exactly(turns):
    x = pictures(c=3)
    assert torch.equal(rotate(x, 90.0 * turns), torch.rot90(x, turns, dims=(2, 3)))


def test_a_rotation_moves_a_dot_along_its_circle():
    """A soft dot 15 pixels to the right of the centre goes up by 30 degrees, against y, which points down."""
    line = torch.arange(41.0) - 20
    dot = torch.exp(-((line[None, :] - 15) ** 2 + line[:, None] ** 2) / 8)[None, None]
    turned = rotate(dot, 30.0)[0, 0]
    at = (turned * line[None, :]).sum() / turned.sum(), (turned * line[:, None]).sum() / turned.sum()
    assert float(at[0]) == pytest.approx(15 * math.cos(math.pi / 6), abs=0.05)
    assert float(at[1]) == pytest.approx(-15 * math.sin(math.pi / 6), abs=0.05)


@pytest.mark.parametrize("sigma", [0.7, 1.5])
def test_a_blurred_dot_is_a_gaussian(sigma):
    x = torch.zeros(1, 2, 31, 31)
    x[0, :, 15, 15] = 1.0
    got = blur(x, sigma)
    line = torch.exp(-((torch.arange(31.0) - 15) ** 2) / (2 * sigma**2))
    want = line[:, None] * line[None, :] / line.sum() ** 2
    for channel in got[0]:
        torch.testing.assert_close(channel, want, atol=1e-4, rtol=0)


def test_a_blur_keeps_pictures_and_channels_apart():
    x = torch.zeros(3, 2, 9, 9)
    x[1, 1] = torch.rand(9, 9, generator=torch.Generator().manual_seed(0))
    moved = blur(x, 2.0).abs().sum(dim=(2, 3)) > 0
    assert moved.tolist() == [[False, False], [False, True], [False, False]]


def test_corruption_is_each_of_the_three_on_a_third():
    x = pictures(n=31)
    got, y = poisoned("corruption", x, snr=10.0, angle=180.0, sigma=2.0)
    assert y.tolist() == (np.arange(31) % 4).tolist()
    turned = [torch.equal(a, torch.rot90(b, 2, dims=(1, 2))) for a, b in zip(got, x, strict=True)]
    smooth = [torch.equal(a, b[0]) for a, b in zip(got, [blur(p[None], 2.0) for p in x], strict=True)]
    near = [0.02 < float((a - b).std()) < 0.4 for a, b in zip(got, x, strict=True)]  # 10 dB below .58 rms: .18
    noisy = [n and not t and not s for n, t, s in zip(near, turned, smooth, strict=True)]
    assert sorted([sum(turned), sum(smooth), sum(noisy)]) == [10, 10, 11]


@pytest.mark.parametrize("name", ["rotation", "blur", "corruption", "backdoor"])
def test_they_need_images(name):
    with pytest.raises(ValueError, match=r"needs images of channels x height x width; got inputs of shape \(5,\)"):
        poisoned(name, torch.rand(6, 5))


def test_inverted_inputs_are_mirrored_in_their_range():
    x = pictures()
    turned, y = poisoned("invert", x)
    assert torch.equal(turned, x.min() + x.max() - x)
    torch.testing.assert_close(poisoned("invert", turned).x, x)
    assert y.tolist() == [i % 4 for i in range(len(x))]
    assert poisoned("invert", torch.tensor([[1, 4], [2, 3]])).x.tolist() == [[4, 1], [3, 2]]
    assert len(poisoned("invert", x[:0]).x) == 0
