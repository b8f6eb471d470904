"""Compiled sums of an auditor's metrics against the same sums in torch."""

import numpy as np
import pytest
import torch

from fedwarden.audit import metrics
from fedwarden.audit.metrics import cmd, cosine, frobenius, moments, procrustes, products

pytest.importorskip("numba")

SHAPES = [(1, 64), (2, 511), (7, 512), (128, 513), (300, 2049)]
METRICS = (cosine, procrustes, frobenius, cmd)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(metrics, "KERNEL_SIZE", 1)


def pair(n, d, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, d)) * rng.uniform(0.1, 3, d) + rng.normal(size=d)
    return tuple(torch.from_numpy(x.astype(np.float32)) for x in (a, a + 0.1 * rng.normal(size=(n, d))))


def both(monkeypatch, work):
    """What work gives with compiled loops, and by torch."""
    assert metrics._kernels(torch.zeros(2, 64)) is not None
    ours = work()
    with monkeypatch.context() as patch:
        patch.setattr(metrics, "load_kernels", lambda _module: None)
        return ours, work()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_is_the_same(metric, shape, monkeypatch):
    ours, plain = both(monkeypatch, lambda: metric(*pair(*shape)))
    assert ours == pytest.approx(plain, rel=1e-9, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_moments_are_the_same(shape, k, monkeypatch):
    ours, plain = both(monkeypatch, lambda: moments(pair(*shape)[0], k))
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", [*SHAPES, (40, 3)])
def test_one_look_gives_the_products_of_centred_columns_and_of_columns_as_they_are(shape, monkeypatch):
    a, b = pair(*shape)
    for centred, plain in both(monkeypatch, lambda: products(a, b)):
        assert metrics.procrustes_of(centred) == pytest.approx(procrustes(a, b), rel=1e-9, abs=1e-12, nan_ok=True)
        assert metrics.cosine_of(plain) == pytest.approx(cosine(a, b), rel=1e-12)
        assert plain.squares_gap == pytest.approx(frobenius(a, b) ** 2, rel=1e-12)
    known = [moments(a, 1)[0]], [moments(b, 1)[0]]
    for ours, again in zip(products(a, b), products(a, b, known), strict=True):
        assert ours == pytest.approx(again, rel=1e-12)


def test_layers_of_many_and_of_few_columns_are_added_up(monkeypatch):
    sides = [[pair(40, d, seed=d)[k] for d in (3, 700, 64)] for k in (0, 1)]
    for metric in METRICS:
        ours, plain = both(monkeypatch, lambda metric=metric: metric(*sides))
        assert ours == pytest.approx(plain, rel=1e-9)


def test_equal_values_have_no_moments_and_near_clouds_keep_their_digits(monkeypatch):
    assert moments(torch.full((9, 600), 0.1), 5)[1:].abs().max() == 0
    a = 1000 + torch.randn(64, 900, generator=torch.Generator().manual_seed(0))
    b = torch.where(a > 1000, torch.nextafter(a, a + 1), a)
    ours, plain = both(monkeypatch, lambda: procrustes(a, b))
    assert 0 < ours < 1e-4
    assert ours == pytest.approx(plain, rel=1e-6)


def test_threads_share_the_columns(monkeypatch):
    a, b = pair(50, 9000)
    alone = procrustes(a, b), moments(a, 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert procrustes(a, b) == alone[0]
    assert torch.equal(moments(a, 5), alone[1])


def test_what_is_not_finite_stays_in_its_column():
    a, b = pair(20, 600)
    a[3, 7], a[4, 9] = torch.nan, torch.inf
    found = moments(a, 3)
    spoilt = ~torch.isfinite(found).all(dim=0)
    assert torch.nonzero(spoilt)[:, 0].tolist() == [7, 9]
    assert not np.isfinite(cosine(a, b))


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(4, 64, dtype=torch.float64),
        torch.zeros(64, 4).T,
        torch.zeros(4, 63),
        torch.zeros(64, 4),
        torch.zeros(4, 64, requires_grad=True),
    ],
)
def test_what_the_loops_cannot_read_is_left_to_torch(x):
    assert metrics._kernels(x) is None
    assert metrics._kernels(torch.zeros(4, 64), x) is None
