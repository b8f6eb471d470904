"""Cosine, Procrustes and CMD against closed forms, scipy, and loops written from the papers."""

import math

import numpy as np
import pytest
import torch
from scipy import linalg, spatial

from fedwarden.audit.metrics import cmd, cosine, procrustes


def clouds(n, units, seed=0, noise=0.5):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, units)) * rng.uniform(0.5, 2, units) + rng.normal(size=units)
    return a, a + noise * rng.normal(size=(n, units))


def centred_unit(a):
    a = a - a.mean(axis=0)
    return a / np.linalg.norm(a)


def paper_cmd(a, b, k):
    """Definition 1 of Zellinger et al., unit by unit."""
    a, b = (x.reshape(len(x), -1) for x in (a, b))
    total = np.linalg.norm(a.mean(axis=0) - b.mean(axis=0))
    for order in range(2, k + 1):
        gap = [
            np.mean([(v - a[:, j].mean()) ** order for v in a[:, j]])
            - np.mean([(v - b[:, j].mean()) ** order for v in b[:, j]])
            for j in range(a.shape[1])
        ]
        total += math.sqrt(sum(g * g for g in gap))
    return total


@pytest.mark.parametrize("shape", [(7,), (300_000,), (20, 30), (4, 3, 2, 5), (1000, 700)])
def test_cosine_is_that_of_scipy(shape):
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=shape), rng.normal(size=shape) + 0.1
    expected = 1 - spatial.distance.cosine(a.ravel(), b.ravel())
    assert cosine(a, b) == pytest.approx(expected, abs=1e-13)
    assert cosine(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(expected, abs=1e-13)


def test_cosine_keeps_its_digits_for_models_that_nearly_agree():
    a = np.random.default_rng(2).normal(size=200_000).astype(np.float32)
    b = a + np.float32(1e-4) * np.random.default_rng(3).normal(size=200_000).astype(np.float32)
    x, y = a.astype(np.longdouble), b.astype(np.longdouble)
    exact = 1 - (x @ y) / np.sqrt((x @ x) * (y @ y))
    assert 1 - cosine(a, b) == pytest.approx(float(exact), rel=1e-6)


def test_the_angle_with_a_zero_vector_is_undefined_and_equal_vectors_agree():
    a = np.array([0.1, 0.2, 0.3])
    assert math.isnan(cosine(a, np.zeros(3)))
    assert math.isnan(cosine(np.zeros(3), np.zeros(3)))
    assert cosine(a, a) == pytest.approx(1.0, abs=1e-15)
    assert cosine(a, a) <= 1.0
    assert cosine(a, -a) == pytest.approx(-1.0, abs=1e-15)


@pytest.mark.parametrize("shape", [(50, 3), (5, 40), (100_001,), (300_000, 2)])
def test_procrustes_is_the_distance_of_centred_clouds_of_unit_norm(shape):
    rng = np.random.default_rng(4)
    a = rng.normal(size=shape) + 3.0
    b = 5 * a + rng.normal(size=shape)
    assert procrustes(a, b) == pytest.approx(np.linalg.norm(centred_unit(a) - centred_unit(b)), rel=1e-9)


@pytest.mark.parametrize(("n", "units"), [(50, 3), (6, 40), (20, 20)])
def test_aligned_procrustes_is_that_of_scipy(n, units):
    a, b = clouds(n, units)
    x, y = centred_unit(a), centred_unit(b)
    rotation, _ = linalg.orthogonal_procrustes(y, x)
    aligned = procrustes(a, b, align="orthogonal")
    assert aligned == pytest.approx(np.linalg.norm(x - y @ rotation), rel=1e-6)
    assert 1 - (1 - aligned**2 / 2) ** 2 == pytest.approx(spatial.procrustes(a, b)[2], rel=1e-6)
    assert aligned <= procrustes(a, b)


def test_procrustes_keeps_its_digits_for_models_that_nearly_agree():
    a = np.random.default_rng(5).normal(size=100_000)
    b = 1.0001 * a + 1e-5 * np.random.default_rng(6).normal(size=100_000)
    x, y = (centred_unit(v.astype(np.longdouble)) for v in (a, b))
    assert procrustes(a, b) == pytest.approx(float(np.sqrt(((x - y) ** 2).sum())), rel=1e-8)
    assert procrustes(a, a) == 0.0


def test_a_single_point_has_no_shape():
    for align in (None, "orthogonal"):
        assert math.isnan(procrustes(np.full(3, 0.1), np.arange(3.0), align))
        assert math.isnan(procrustes(np.ones((4, 2)), np.ones((4, 2)), align))


def test_cmd_of_two_coins_in_closed_form():
    a = np.array([-1.0, 1.0])  # central moments 1, 0, 1, 0, and of the doubled one 4, 0, 16, 0
    assert cmd(a, 2 * a) == pytest.approx(3 + 15)
    assert cmd(a, 2 * a, k=3) == pytest.approx(3)


@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_cmd_is_that_of_the_paper(k):
    a, b = clouds(9, 4)
    assert cmd(a, b[:7], k=k) == pytest.approx(paper_cmd(a, b[:7], k), rel=1e-10)
    assert cmd(a[:, 0], b[:, 0], k=k) == pytest.approx(paper_cmd(a[:, 0], b[:, 0], k), rel=1e-10)


def test_cmd_of_a_large_model_does_not_overflow_and_is_exact():
    size = 1_200_000
    values = np.tile(np.array([-1e6, 1e6], dtype=np.float32), size // 2)
    assert cmd(values, np.float32(2) * values) == pytest.approx(3e12 + 15e24)  # float32 would end at 3e38 of the sum
    assert cmd(values, values + np.float32(1e6)) == pytest.approx(1e6)
    huge = values * np.float32(1e30)
    assert math.isfinite(cmd(huge, 2 * huge))


def test_layers_side_by_side_are_one_wide_matrix():
    a, b = clouds(11, 9)
    cut = [(x[:, :2], x[:, 2:5], x[:, 5:].reshape(11, 2, 2)) for x in (a, b)]
    for metric in (cosine, procrustes, cmd):
        assert metric(list(cut[0]), list(cut[1])) == pytest.approx(metric(a, b), rel=1e-12)
    wide = clouds(4, 9)
    cut = [[x[:, :4], x[:, 4:]] for x in wide]
    assert procrustes(*cut, align="orthogonal") == pytest.approx(procrustes(*wide, align="orthogonal"), rel=1e-6)


def test_not_a_number_stays_one():
    a = np.array([1.0, math.nan, 3.0])
    for metric in (cosine, procrustes, cmd):
        assert math.isnan(metric(a, np.arange(3.0)))
    assert math.isnan(procrustes(a, np.arange(3.0), align="orthogonal"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cosine([1.0, 2.0], [1.0]), r"same shape; got 2 x 1 and 1 x 1"),
        (lambda: procrustes(np.ones((2, 3)), np.ones((2, 4))), r"same shape; got 2 x 3 and 2 x 4"),
        (lambda: cmd(np.ones((2, 3)), np.ones((5, 4))), r"same number of units; got 2 x 3 and 5 x 4"),
        (lambda: cosine([], []), r"at least one real number"),
        (lambda: cosine(np.array([1j]), np.array([1j])), r"at least one real number"),
        (lambda: procrustes([1.0], [2.0], align="rotation"), r"align is None or 'orthogonal'; got 'rotation'"),
        (lambda: cmd([1.0], [2.0], k=0), r"at least the first moment; got k=0"),
        (lambda: cosine([np.ones(3)], [np.ones(3)]), r"a list stands for matrices with the same rows"),
        (lambda: cosine([np.ones((3, 1)), np.ones((2, 1))], [np.ones((3, 1))]), r"matrices with the same rows"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
