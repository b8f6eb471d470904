"""RandEigen: the filter as a loop in d dimensions with the same chances, and where it stops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden_research.aggregators.randeigen import RandEigen, power_iteration, randeigen_kept


def loop(x, f, starts, draws, accuracy=0.1):
    """The authors' steps on the rows themselves: covariance (d, d), power method, and one chance per client."""
    n, left, last = len(x), list(range(len(x))), None
    for t in range(draws.shape[1]):
        if len(left) == 1:
            return left  # one client has no direction
        z = x[left] - x[left].mean(axis=0)
        covariance = z.T @ z / len(left)
        v = starts[left, t] @ z
        for _ in range(math.ceil(math.log(4 * len(left)) / (-2 * math.log(1 - accuracy)))):
            v = covariance @ v
            v = v / np.linalg.norm(v)
        value = v @ covariance @ v
        scores = [abs(float(row @ v)) for row in z]
        high = sum(score > 0.5 * max(scores) for score in scores)
        if (
            (last is not None and abs(last - value) < 1e-5 * value)
            or len(left) < f
            or high > len(left) * (1 - 2 * f / n)
        ):
            return left
        after = [i for i, score in zip(left, scores, strict=True) if draws[i, t] > score / max(scores)]
        if not after:
            return left
        left, last = after, value
    return left


@pytest.mark.parametrize(("n", "f"), [(4, 1), (9, 2), (20, 4), (31, 10)])
def test_the_loop_in_d_dimensions(n, f):
    sizes = set()
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x, starts, draws = rng.normal(size=(n, 7)), rng.normal(size=(n, 6)), rng.random((n, 6))
        x[:f] += 3.0 * (seed % 2)
        kept = randeigen_kept(x @ x.T, f, 0.1, starts, draws)
        assert kept.tolist() == loop(x, f, starts, draws)
        sizes.add(len(kept))
    assert len(sizes) > 1 or n == 4


@given(st.integers(0, 10_000), st.integers(2, 15), st.integers(1, 8), st.sampled_from([0.3, 0.1, 0.01]))
def test_the_estimate_is_never_above_the_eigenvalue_and_near_it_as_a_rule(seed, n, d, accuracy):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    z = x - x.mean(axis=0)
    value, along = power_iteration(z @ z.T, rng.normal(size=n), accuracy)
    exact = np.linalg.svd(z, compute_uv=False)[0] ** 2 / n
    assert value <= exact * (1 + 1e-9)
    assert (along**2).mean() == pytest.approx(value)  # a projection on a unit vector has this mean square
    assert value >= (1 - 2 * accuracy) * exact


def test_the_farthest_client_never_stays_where_the_filter_goes_on(cohort_of):
    x = np.random.default_rng(0).normal(size=(10, 30))
    x[3] += 40.0
    for seed in range(20):
        weights = RandEigen(seed=seed).step({}, cohort_of(x), np.ones(10))[1].weights
        assert weights[3] == 0
        assert weights[weights > 0] == pytest.approx(1 / (weights > 0).sum())


def test_chance_goes_by_seed_round_and_client(cohort_of):
    x = np.random.default_rng(1).normal(size=(12, 30))

    def kept(seed=0, round=1, order=range(12)):
        ids = [f"c{i}" for i in order]
        weights = (
            RandEigen(seed=seed, steps=1).step({}, cohort_of(x[list(order)], ids, round=round), np.ones(12))[1].weights
        )
        return frozenset(ids[i] for i in np.flatnonzero(weights))

    assert kept() == kept() == kept(order=(5, 3, 1, 0, 2, 4, 11, 10, 9, 8, 7, 6))
    assert len({kept(round=t) for t in range(1, 6)}) > 1
    assert len({kept(seed=s) for s in range(5)}) > 1


def test_who_is_as_likely_out_as_its_score_says():
    """Points on a line, one step: the chance to stay is 1 - s_i / max s, over 4,000 draws to four deviations."""
    points = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 8.0, -8.0])  # mean 0
    rng, times = np.random.default_rng(0), 4000
    stays = np.zeros(9)
    for _ in range(times):
        stays[randeigen_kept(np.outer(points, points), 1, 0.1, rng.normal(size=(9, 1)), rng.random((9, 1)))] += 1
    chance = 1 - np.abs(points) / 8
    room = 4 * np.sqrt(chance * (1 - chance) / times)
    assert (np.abs(stays / times - chance) <= room).all()


def test_it_stops_where_most_scores_are_high():
    """Two groups face each other: all scores are alike, so that nobody is an outlier."""
    points = np.array([1.0, 1.1, 0.9, -1.0, -1.1, -0.9])
    kept = randeigen_kept(np.outer(points, points), 1, 0.1, np.ones((6, 3)) + np.eye(6, 3), np.zeros((6, 3)))
    assert kept.tolist() == list(range(6))


def test_it_stops_where_the_eigenvalue_stands_still():
    """Points 3, -3, 2, -2 and nine zeros have variance 26/13 = 2, and so have 2, -2 and two zeros."""
    points = np.array([3.0, -3.0, 2.0, -2.0] + [0.0] * 9)
    draws = np.full((13, 2), 0.9)
    draws[6:, 0] = 0.0  # seven zeros go with the threes
    assert randeigen_kept(np.outer(points, points), 1, 0.1, np.column_stack([points, points]), draws).tolist() == [
        2,
        3,
        4,
        5,
    ]
    draws[6, 0] = 0.9  # six zeros: the variance is 8/5, and the twos go next
    assert randeigen_kept(np.outer(points, points), 1, 0.1, np.column_stack([points, points]), draws).tolist() == [
        4,
        5,
        6,
    ]


def test_somebody_is_always_left():
    """Scores 2, 1 and 1, none above half of the largest but that: with the worst of chances all would go."""
    points = np.array([2.0, -1.0, -1.0, 0.0])
    kept = randeigen_kept(np.outer(points, points), 1, 0.1, np.column_stack([points, points]), np.zeros((4, 2)))
    assert kept.tolist() == [0, 1, 2, 3]  # a draw of 0 keeps nobody


def test_options():
    x = np.random.default_rng(0).normal(size=(9, 4))
    np.testing.assert_allclose(fw.aggregate("randeigen", x, f=0).update, x.mean(axis=0), atol=1e-12)
    same = fw.aggregate("randeigen", np.ones((6, 3)))
    assert same.update.tolist() == pytest.approx([1.0, 1.0, 1.0])
    for f in (3, -1):
        with pytest.raises(ValueError, match=rf"randeigen needs n > 3f clients and f >= 0; got n=9, f={f}"):
            fw.aggregate("randeigen", x, f=f)
    with pytest.raises(ValueError, match="got n=3, f=1"):
        fw.aggregate("randeigen", x[:3])
    with pytest.raises(ValueError, match=r"an accuracy between 0 and 1; got 1\.0"):
        fw.aggregate("randeigen", x, accuracy=1.0)
    with pytest.raises(ConfigError, match="randeigen needs a step or more; got steps=0"):
        fw.aggregate("randeigen", x, steps=0)
