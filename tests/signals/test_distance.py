"""Distances to the three centres against NumPy on the whole matrix."""

import numpy as np
import pytest
from scipy.optimize import minimize

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.signals.distance import CentroidDistance
from fedwarden.updates import updates as module
from fedwarden.updates.updates import Updates


def mean_of(x):
    return x.mean(axis=0)


def median_of(x):
    return np.median(x, axis=0)


def geometric_median_of(x):
    """The point with the least sum of distances, found by a general minimiser."""
    cost = lambda z: np.linalg.norm(x - z, axis=1).sum()  # noqa: E731
    return minimize(cost, np.median(x, axis=0), method="BFGS", options={"gtol": 1e-9}).x


CENTRES = {"mean": mean_of, "median": median_of, "geometric_median": geometric_median_of}


@pytest.mark.parametrize("n", [3, 8, 9])
@pytest.mark.parametrize("centre", CENTRES)
def test_distance_to_the_centre_of_the_trusted(centre, n, cohort_of):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 5))
    for trusted in (np.ones(n, bool), np.arange(n) > 0):
        z = CENTRES[centre](x[trusted])
        scores = CentroidDistance(centre)(cohort_of(x, trusted=trusted))
        np.testing.assert_allclose(scores, np.linalg.norm(x - z, axis=1), atol=2e-3 if centre[0] == "g" else 1e-9)


@pytest.mark.parametrize("centre", CENTRES)
def test_only_measured_columns_count(centre, cohort_of):
    x = np.random.default_rng(0).normal(size=(6, 40))
    signal = CentroidDistance(centre)
    some = signal(cohort_of(Updates.of(x, measured=[(3, 10), (20, 40)])))
    np.testing.assert_allclose(some, signal(cohort_of(np.delete(x, [0, 1, 2, *range(10, 20)], axis=1))), atol=1e-9)


def test_the_mean_weighs_clients_equally_whatever_their_counts(cohort_of):
    x = np.random.default_rng(0).normal(size=(4, 3))
    scores = CentroidDistance()(cohort_of(x, counts=[1, 100, 1, 1]))
    np.testing.assert_allclose(scores, np.linalg.norm(x - x.mean(axis=0), axis=1))


def test_an_unknown_centre():
    with pytest.raises(ConfigError, match="centre is 'mean', 'median' or 'geometric_median'; got 'middle'"):
        make("signal", "centroid_distance", centre="middle")


@pytest.mark.parametrize("centre", ["median", "geometric_median"])
@pytest.mark.parametrize("strength", [1e3, 1e6, 1e12])
def test_a_huge_client_does_not_blur_the_distances_of_the_others(centre, strength, cohort_of):
    """A robust centre hardly moves, so the others' distances are those without the attacker, to a few per cent."""
    x = np.random.default_rng(0).normal(size=(10, 200)).astype(np.float32)
    signal = CentroidDistance(centre)
    alone = signal(cohort_of(x))
    x = np.concatenate([x, np.full((1, 200), strength, np.float32)])
    np.testing.assert_allclose(signal(cohort_of(x))[:-1], alone, rtol=0.1)


@pytest.mark.parametrize("centre", CENTRES)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_score_of_an_accepted_row_is_a_number(centre, compiled, cohort_of, monkeypatch):
    """What the survey calls finite must not overflow in a later sum: a NaN score is above no threshold."""
    if compiled:
        pytest.importorskip("numba")
        monkeypatch.setattr(module, "KERNEL_SIZE", 0)
    x = np.random.default_rng(0).normal(size=(4, 60_000)).astype(np.float32)
    x[3] = 5e17
    cohort = cohort_of(x)
    finite = cohort.updates.survey().finite
    scores = CentroidDistance(centre)(cohort.select(np.flatnonzero(finite).tolist()))
    assert np.isfinite(scores).all()
