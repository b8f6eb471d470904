"""Geometry from inner products against geometry from the rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from fedwarden.updates import gram
from fedwarden.updates.gram import MANY, cosines, distances_to, largest, planar, squared_distances
from fedwarden_research.aggregators.caf import principal


def centred(x):
    return x - x.mean(axis=0)


def gram_of(x):
    return centred(x) @ centred(x).T


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 12))
def test_distances_to_a_combination(seed, n, d):
    rng = np.random.default_rng(seed)
    x, weights = rng.normal(size=(n, d)), rng.dirichlet(np.ones(n))
    want = np.linalg.norm(x - weights @ x, axis=1)
    np.testing.assert_allclose(distances_to(gram_of(x), weights), want, atol=1e-6)


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 12))
def test_squared_distances_about_any_point(seed, n, d):
    rng = np.random.default_rng(seed)
    x, origin = rng.normal(size=(n, d)), rng.normal(size=d)
    squares = squared_distances((x - origin) @ (x - origin).T)
    np.testing.assert_allclose(squares, cdist(x, x, "sqeuclidean"), atol=1e-9)
    assert (squares >= 0).all()


def test_no_distance_is_negative_where_rows_agree():
    """Rounding leaves G_ii + G_jj - 2 G_ij below 0 for some pairs of equal rows."""
    x = np.random.default_rng(0).normal(size=(1, 50)) * np.ones((6, 1)) * 1e3
    gram = x @ x.T + 1e-6 * np.random.default_rng(1).normal(size=(6, 6))
    assert (np.diag(gram)[:, None] + np.diag(gram) - gram - gram.T < 0).any()
    assert (squared_distances(gram) >= 0).all()


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 12))
def test_cosines_are_those_of_scipy(seed, n, d):
    x = np.random.default_rng(seed).normal(size=(n, d)) * 10.0 ** np.random.default_rng(seed).integers(
        -6, 6, size=(n, 1)
    )
    np.testing.assert_allclose(cosines(x @ x.T), 1 - cdist(x, x, "cosine"), atol=1e-9)


def test_a_row_of_zeros_has_no_direction_and_no_cosine_exceeds_one():
    x = np.array([[0.0, 0.0], [3.0, 4.0], [-6.0, -8.0], [0.1, 0.1]])
    found = cosines(x @ x.T)
    assert found[0].tolist() == found[:, 0].tolist() == [0.0] * 4
    assert found[1, 2] == pytest.approx(-1.0)
    assert np.abs(found).max() <= 1.0
    assert cosines(np.array([[1.0, 1.1], [1.1, 1.0]])).tolist() == [[1.0, 1.0], [1.0, 1.0]]


@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 12))
def test_the_main_direction_is_that_of_the_weighted_covariance(seed, n, d):
    """By an eigendecomposition in d dimensions; a client of weight 0 has a place along it too."""
    rng = np.random.default_rng(seed)
    x, shares = rng.normal(size=(n, d)), rng.dirichlet(np.ones(n))
    shares[0] = 0.0
    shares /= shares.sum()
    z = x - shares @ x
    about_mean = gram.centred((x + 3.0) @ (x + 3.0).T, shares)
    np.testing.assert_allclose(about_mean, z @ z.T, atol=1e-9)
    value, along = principal(about_mean, shares)
    values, vectors = np.linalg.eigh((z * shares[:, None]).T @ z)
    assert value == pytest.approx(values[-1], abs=1e-9)
    if value > 1e-6 and (d == 1 or values[-1] - values[-2] > 1e-3):
        np.testing.assert_allclose(np.abs(along), np.abs(z @ vectors[:, -1]), atol=1e-5)


@given(st.integers(0, 10**6), st.integers(2, 9))
def test_a_map_keeps_the_distances_of_directions_that_lie_in_a_plane(seed, n):
    rng = np.random.default_rng(seed)
    angles, lengths = rng.uniform(0, 2 * np.pi, size=n), rng.uniform(0.1, 9.0, size=n)
    ways = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    rows = lengths[:, None] * ways @ np.linalg.qr(rng.normal(size=(7, 2)))[0].T
    np.testing.assert_allclose(cdist(*2 * [planar(cosines(rows @ rows.T))]), cdist(ways, ways), atol=1e-6)


def test_a_map_does_not_flip_from_round_to_round():
    rng = np.random.default_rng(0)
    common, aim = rng.normal(size=(2, 200))
    side = []
    for _ in range(20):
        rows = common + rng.normal(size=(10, 200))
        rows[8:] = aim + 0.1 * rng.normal(size=(2, 200))
        points = planar(cosines(rows @ rows.T))
        assert np.linalg.norm(points[8] - points[9]) < 0.2 < np.linalg.norm(points[8] - points[:8], axis=1).min()
        side.append(points[8, 0] > 0)
    assert all(side)


@pytest.mark.parametrize("rows", [np.zeros((3, 4)), np.ones((1, 4)), np.ones((4, 4)), np.zeros((0, 4))])
def test_a_map_of_rows_without_directions_is_finite(rows):
    assert planar(cosines(rows @ rows.T)).shape == (len(rows), 2)
    assert np.isfinite(planar(cosines(rows @ rows.T))).all()


@pytest.mark.parametrize("n", [2, MANY - 1, MANY, 3 * MANY])
def test_the_largest_eigenvalues_are_those_of_all(n):
    rows = np.random.default_rng(0).standard_normal((n, 40))
    values, vectors = largest(rows @ rows.T, 2, np.ones(n))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(rows @ rows.T)[-2:], rtol=1e-9)
    np.testing.assert_allclose(rows @ rows.T @ vectors, vectors * values, atol=1e-7 * values[-1])
    assert largest(np.zeros((n, n)), 2, np.ones(n))[0].tolist() == [0.0, 0.0]


def test_many_rows_are_drawn_where_all_eigenvectors_place_them():
    """Classical scaling written out, of two groups and some noise."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((3 * MANY, 50)) + 3.0 * (np.arange(3 * MANY) % 3 == 0)[:, None]
    likeness = cosines(rows @ rows.T)
    centre = np.eye(len(rows)) - 1 / len(rows)
    values, vectors = np.linalg.eigh(centre @ likeness @ centre)
    wanted = vectors[:, [-1, -2]] * np.sqrt(values[[-1, -2]])
    np.testing.assert_allclose(np.abs(planar(cosines(rows @ rows.T))), np.abs(wanted), atol=1e-5)
