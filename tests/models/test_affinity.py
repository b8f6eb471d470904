"""Activation patterns as bits: exact counts by every way of counting."""

import math
from typing import get_args

import numpy as np
import pytest
import torch

from fedwarden.models import affinity as module
from fedwarden.models.affinity import WIDTH, Method, Way, affinity, hamming, overlap

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def loop_hamming(bits):
    n = len(bits)
    return [
        [sum(bool(a) != bool(b) for a, b in zip(bits[i], bits[j], strict=True)) for j in range(n)] for i in range(n)
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1, 5, WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_products_in_blocks_count_like_a_plain_loop(size, dtype, device):
    units = torch.randn(4, size, generator=torch.Generator().manual_seed(size))
    units[0, : size // 2] = 0.0
    units = (units > 0 if dtype == torch.bool else units.to(dtype)).to(device)
    assert hamming(overlap(units)).tolist() == loop_hamming((units > 0).tolist())
    many = torch.stack([units, ~units if dtype == torch.bool else -units])
    assert torch.equal(overlap(many)[0], overlap(units))


@pytest.mark.parametrize("size", [3, 64, 1000, 5000])
def test_affinities_are_the_share_of_units_that_agree(size):
    units = torch.randn(6, size)
    want = 1 - np.array(loop_hamming((units > 0).tolist())) / size
    np.testing.assert_allclose(affinity(units).numpy(), want, atol=1e-7)


@pytest.mark.parametrize("kernels", [0, math.inf])
@pytest.mark.parametrize("size", [3, 64, 1000])
@pytest.mark.parametrize("way", get_args(Way))
def test_every_way_to_hold_gives_the_same_squares(way, size, kernels, monkeypatch):
    """||A - B||^2 and ||A||^2 by plain sums over the affinities of five models, against the first."""
    if not kernels:
        pytest.importorskip("numba")
    monkeypatch.setattr(module, "KERNEL_SIZE", kernels)
    units = torch.randn(5, 7, size, generator=torch.Generator().manual_seed(size))
    a = 1 - np.array([loop_hamming((x > 0).tolist()) for x in units]) / size
    want = [[((x - a[0]) ** 2).sum(), (x**2).sum()] for x in a]
    method = Method.best(units.device, units.numel(), way)
    held = method.hold(units) if way == "stacked" else torch.stack([method.hold(x) for x in units])
    patterns = method.finish(held)
    got = method.squares(patterns, patterns[:1], size)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)
    assert got[0, 0] == 0
