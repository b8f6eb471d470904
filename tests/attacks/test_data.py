"""Poisoned data: as many labels as asked, moved as asked, and noise of the asked strength."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.attacks.data import add_noise, derangement, flip_labels
from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make, names


def rng(seed=0):
    return np.random.default_rng(seed)


def labels(n, classes, seed=0):
    return rng(seed).integers(0, classes, size=n)


@given(st.integers(2, 30), st.integers(0, 10**6))
def test_a_derangement_moves_everything(k, seed):
    order = derangement(k, rng(seed))
    assert sorted(order.tolist()) == list(range(k))
    assert (order != np.arange(k)).all()


def test_every_derangement_is_as_likely():
    """There are 9 of four elements: 4! (1 - 1 + 1/2 - 1/6 + 1/24)."""
    generator, draws = rng(), 4500
    counts = Counter(tuple(derangement(4, generator)) for _ in range(draws))
    assert len(counts) == 9
    chi2 = sum((c - draws / 9) ** 2 / (draws / 9) for c in counts.values())
    assert chi2 < 26.1  # the 0.999 quantile with 8 degrees of freedom


@pytest.mark.parametrize("k", [0, 1])
def test_a_derangement_of_one_class_is_impossible(k):
    with pytest.raises(ValueError, match=f"needs at least 2 classes; got {k}"):
        derangement(k, rng())


@given(st.integers(0, 60), st.floats(0, 1), st.integers(0, 10**6))
def test_the_fraction_is_an_exact_count(n, fraction, seed):
    y = labels(n, 5, seed)
    before = y.copy()
    flipped = flip_labels(y, (np.arange(5) + 1) % 5, fraction, rng(seed))
    assert (flipped != y).sum() == round(fraction * n)
    moved = flipped != y
    assert (flipped[moved] == (y[moved] + 1) % 5).all()
    assert (y == before).all()


def test_which_labels_are_flipped_is_random():
    y = np.zeros(100, dtype=np.int64)
    chosen = [frozenset(np.flatnonzero(flip_labels(y, np.array([1]), 0.3, rng(s)))) for s in range(20)]
    assert len(set(chosen)) == 20
    counts = Counter(i for c in chosen for i in c)
    assert len(counts) > 90  # 20 draws of 30 % leave one out with probability 0.0008


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 1.0])
def test_label_flip_by_derangement(fraction):
    x, y = torch.rand(50, 3), labels(50, 10)
    same, flipped = make("attack", "label_flip", fraction=fraction)(x, y, 10, rng(3))
    assert torch.equal(same, x)
    assert (flipped != y).sum() == round(50 * fraction)
    mapping = {}
    for a, b in zip(y[flipped != y].tolist(), flipped[flipped != y].tolist(), strict=True):
        assert mapping.setdefault(a, b) == b  # one class always becomes the same other
    assert len(set(mapping.values())) == len(mapping)
    assert set(flipped.tolist()) <= set(range(10))


def test_label_flip_in_pairs():
    y = np.arange(6).repeat(2)
    _, flipped = make("attack", "label_flip", mode="pairwise")(torch.zeros(12, 1), y, 6, rng())
    assert flipped.tolist() == (5 - y).tolist()  # 0 with 5, 1 with 4, 2 with 3
    _, odd = make("attack", "label_flip", mode="pairwise")(torch.zeros(5, 1), np.arange(5), 5, rng())
    assert odd.tolist() == [4, 3, 2, 1, 0]  # the middle class has no partner


def test_label_flip_to_one_class():
    y = labels(40, 4)
    _, all_of_them = make("attack", "label_flip", mode="constant", target=2)(torch.zeros(40, 1), y, 4, rng())
    assert set(all_of_them.tolist()) == {2}
    _, half = make("attack", "label_flip", mode="constant", target=2, fraction=0.5)(torch.zeros(40, 1), y, 4, rng())
    assert (half[half != y] == 2).all()
    assert (half == 2).sum() >= 20


@pytest.mark.parametrize("snr", [-10.0, 0.0, 6.0, 20.0])
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_noise_has_the_asked_ratio(snr, scale):
    x = scale * torch.rand(200, 1, 20, 20, generator=torch.Generator().manual_seed(1))
    before = x.clone()
    noisy = add_noise(x, snr, torch.Generator().manual_seed(2))
    noise = (noisy - x).double()
    got = 10 * math.log10(float(x.double().square().mean() / noise.square().mean()))
    assert got == pytest.approx(snr, abs=0.1)  # 80,000 draws: a standard error of 0.02 dB
    assert abs(float(noise.mean())) < 5 * float(noise.std()) / math.sqrt(noise.numel())
    assert torch.equal(x, before)
    assert noisy.dtype == x.dtype


def test_feature_noise_leaves_the_labels():
    x, y = torch.rand(100, 30), labels(100, 3)
    noisy, same = make("attack", "feature_noise", snr=3.0)(x, y, 3, rng())
    assert (same == y).all()
    assert 10 * math.log10(float(x.square().mean() / (noisy - x).square().mean())) == pytest.approx(3.0, abs=0.5)


@pytest.mark.parametrize("name", names("attack"))
def test_the_generator_alone_decides(name):
    x, y = torch.rand(30, 4), labels(30, 5)
    attack = make("attack", name)

    def result(seed):
        a, b = attack(x, y, 5, rng(seed))
        return a.tolist(), b.tolist()

    torch.manual_seed(0)
    first = result(1)
    torch.manual_seed(5)
    assert result(1) == first
    assert result(2) != first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 1.1}, r"fraction lies in \[0, 1\]; got 1.1"),
        ({"fraction": -0.1}, r"fraction lies in \[0, 1\]"),
        ({"mode": "random"}, "mode is 'derangement', 'pairwise' or 'constant'; got 'random'"),
    ],
)
def test_options_outside_of_their_range(options, message):
    with pytest.raises(ConfigError, match=message):
        make("attack", "label_flip", **options)


@pytest.mark.parametrize("target", [-1, 4])
def test_a_class_that_there_is_not(target):
    """A label outside of the classes would end the run inside of the loss."""
    with pytest.raises(ValueError, match="target"):
        make("attack", "label_flip", mode="constant", target=target)(torch.zeros(3, 1), np.zeros(3, int), 4, rng())
