"""Direction and twins against plain loops, and what they are there to see."""

import numpy as np
import pytest

from fedwarden.signals.direction import MOST, Direction, Twins


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def clients(n=9, d=40, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0.5, 1.0, size=(n, d))


@pytest.mark.parametrize("n", [3, 4, 9])
def test_direction_is_a_median_of_cosines(n, cohort_of):
    x = clients(n)
    trusted = np.arange(n) != 1
    loop = [
        np.quantile([cosine(x[i], x[j]) for j in range(n) if j != i and trusted[j]], 0.5, method="higher")
        for i in range(n)
    ]
    want = np.median(np.array(loop)[trusted]) - loop
    np.testing.assert_allclose(Direction()(cohort_of(x, trusted=trusted)), want, atol=1e-9)


def test_whoever_pulls_against_the_others_stands_out(cohort_of):
    x = clients(10, d=2000)  # cosines of 0.2, give or take 0.02
    x[:4] *= -1
    scores = Direction()(cohort_of(x))
    assert scores[:4].min() > 0.25
    assert scores[4:].max() < 0.1


def test_closeness_is_a_ratio_of_distances(cohort_of):
    x = clients(7)
    nearest = [min(np.linalg.norm(x[i] - x[j]) for j in range(7) if j != i) for i in range(7)]
    np.testing.assert_allclose(Twins()(cohort_of(x)), np.log(np.median(nearest) / nearest), atol=1e-9)


@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-3])
def test_copies_stand_out_whatever_their_share_below_one_half(noise, cohort_of):
    x = clients(11)
    x[:5] = x[0] + noise * np.random.default_rng(1).normal(size=(5, 40))
    scores = Twins()(cohort_of(x))
    assert scores[:5].min() > np.log(100) > np.log(2) > scores[5:].max()
    assert scores.max() <= MOST + 1e-9
