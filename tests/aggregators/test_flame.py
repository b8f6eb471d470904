"""FLAME: its cluster beside scikit-learn's HDBSCAN, its clipping by hand, its noise by its moments."""

import numpy as np
import pytest
from sklearn.cluster import HDBSCAN
from sklearn.metrics.pairwise import cosine_distances

import fedwarden as fw
from fedwarden_research.aggregators.flame import Flame, majority

ANGLES = np.deg2rad([0.0, 5.0, 12.0, 90.0, 180.0])
FAN = np.array([1.0, 2.0, 3.0, 10.0, 20.0])[:, None] * np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)


def hdbscan(distances):
    """The members of the cluster that the paper's settings find."""
    rule = HDBSCAN(
        metric="precomputed",
        min_cluster_size=len(distances) // 2 + 1,
        min_samples=1,
        allow_single_cluster=True,
        copy=True,
    )
    return rule.fit(distances).labels_ == 0


def apart(x):
    distances = cosine_distances(x)
    return (distances + distances.T) / 2


@pytest.mark.parametrize("n", [2, 3, 4, 7, 10, 25, 40])
def test_the_majority_is_the_cluster_of_hdbscan(n):
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, 6)) + 2 * rng.normal(size=6) * (rng.random((n, 1)) < 0.7)
        found = majority(apart(x))
        assert found.tolist() == hdbscan(apart(x)).tolist()
        assert found.sum() > n / 2


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_equal_distances_are_cut_as_hdbscan_cuts_them(levels):
    for seed in range(30):
        x = np.random.default_rng(seed).integers(0, levels + 1, size=(11, 2)).astype(float)
        distances = np.abs(x[:, None] - x).sum(axis=2)
        assert majority(distances).tolist() == hdbscan(distances).tolist()


def test_the_answer_by_hand(cohort_of):
    """Three of five point one way. The median length is that of the third, so that nothing in the group is cut."""
    result = Flame(noise=0.0).step({}, cohort_of(FAN), np.ones(5))[1]
    np.testing.assert_allclose(result.update, FAN[:3].mean(axis=0), atol=1e-12)
    assert result.weights is None
    long = FAN * np.array([[7.0], [1.0], [1.0], [1.0], [1.0]])  # lengths 7, 2, 3, 10, 20: no member is longer than 7
    np.testing.assert_allclose(fw.aggregate("flame", long, noise=0).update, long[:3].mean(axis=0), atol=1e-12)
    long[3:] /= 10  # lengths 7, 2, 3, 1, 2: the first is cut to 2
    want = (long[0] * 2 / 7 + long[1] + long[2] * 2 / 3) / 3
    np.testing.assert_allclose(fw.aggregate("flame", long, noise=0).update, want, atol=1e-12)


@pytest.mark.parametrize("weighted", [True, False])
def test_counts_weigh_within_the_majority_alone(weighted, cohort_of):
    counts, weights = np.array([1.0, 2.0, 3.0, 100.0, 100.0]), np.array([1.0, 0.5, 1.0, 1.0, 1.0])
    shares = np.array([1, 1, 3] if weighted else [1, 0.5, 1])
    result = Flame(0.0, weighted).step({}, cohort_of(FAN, counts=counts), weights)[1]
    np.testing.assert_allclose(result.update, shares @ FAN[:3] / shares.sum(), atol=1e-12)


def test_noise_has_the_deviation_of_the_paper_and_is_new_every_round(cohort_of):
    """Over d draws the mean square is noise^2 S^2 (1 +- sqrt(2 / d)), and two rounds are uncorrelated."""
    d, x = 40_000, np.random.default_rng(0).normal(1.0, 1.0, size=(7, 40_000))
    length = np.median(np.linalg.norm(x, axis=1))
    clean = Flame(noise=0.0).step({}, cohort_of(x), np.ones(7))[1].update
    rule = Flame(noise=0.02)
    first, again, second = (rule.step({}, cohort_of(x, round=t), np.ones(7))[1].update - clean for t in (1, 1, 2))
    assert (first == again).all()
    for noise in (first, second, Flame(noise=0.02, seed=1).step({}, cohort_of(x), np.ones(7))[1].update - clean):
        assert float(noise.square().mean()) == pytest.approx((0.02 * length) ** 2, rel=5 * (2 / d) ** 0.5)
        assert abs(float(noise.mean())) < 5 * 0.02 * length / d**0.5
    for other in (second, noise):
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 / d**0.5


def test_what_is_not_measured_gets_no_noise(cohort_of):
    x = np.abs(np.random.default_rng(1).normal(1.0, 0.1, size=(5, 8)))
    updates = fw.Updates.of(x, measured=[(0, 3), (5, 8)])
    clean, noisy = (Flame(noise=noise).step({}, cohort_of(updates), np.ones(5))[1].update for noise in (0.0, 1.0))
    assert ((clean != noisy).numpy() == [True] * 3 + [False] * 2 + [True] * 3).all()


def test_zeros_are_like_nobody_and_stay_zero():
    assert fw.aggregate("flame", np.zeros((4, 3))).update.tolist() == [0.0, 0.0, 0.0]


def test_what_it_refuses():
    with pytest.raises(ValueError, match="flame needs n >= 2 clients; got n=1"):
        fw.aggregate("flame", FAN[:1])
    for noise in (-1.0, float("nan")):
        with pytest.raises(ValueError, match=f"flame needs noise of at least 0; got {noise}"):
            fw.aggregate("flame", FAN, noise=noise)
