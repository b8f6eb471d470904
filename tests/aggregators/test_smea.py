"""SMEA: every subset against singular values, and where there are too many of them."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

import fedwarden as fw
from fedwarden_research.aggregators import smea as module
from fedwarden_research.aggregators.smea import SMEA, smallest_spread
from fedwarden_research.conformance import newer


def rows(n=9, d=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)) * np.linspace(0.5, 2.0, n)[:, None]


@pytest.mark.parametrize(("n", "f"), [(3, 1), (8, 0), (8, 3), (9, 1), (9, 4), (11, 5)])
@pytest.mark.parametrize("together", [7, 4096])
def test_no_subset_varies_less(n, f, together, monkeypatch):
    monkeypatch.setattr(module, "TOGETHER", together)
    for seed in range(3):
        x = rows(n, seed=seed)
        result = fw.aggregate("smea", x, f=f)
        np.testing.assert_allclose(result.update, newer.smea(x, f), atol=1e-9)
        assert sorted(result.weights) == pytest.approx([0.0] * f + [1 / (n - f)] * (n - f))

        def spread(chosen, x=x):
            return np.linalg.eigvalsh(np.atleast_2d(np.cov(x[list(chosen)].T, bias=True)))[-1]

        best = spread(np.flatnonzero(result.weights))
        assert all(best <= spread(s) + 1e-9 for s in combinations(range(n), n - f))


def test_it_is_the_worst_direction_that_counts_and_not_the_sum_of_squares():
    other = 0
    for seed in range(10):
        x = rows(7, 5, seed)
        subsets = list(combinations(range(7), 5))
        least = min(subsets, key=lambda s, x=x: x[list(s)].var(axis=0).sum())
        other += tuple(smallest_spread(x @ x.T, f=2, limit=100)) != least
    assert other > 0


def test_the_published_example():
    """ByzFL's documentation prints 2.5, 3.5, 4.5: both ends are as good to leave out, and the first clients stay."""
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    np.testing.assert_allclose(fw.aggregate("smea", x, f=1).update, [2.5, 3.5, 4.5], atol=1e-12)


def test_attackers_that_agree_are_left_out():
    x = rows(13, 30)
    x[:6] = 5.0
    assert np.flatnonzero(fw.aggregate("smea", x).weights).tolist() == list(range(6, 13))


def test_options(cohort_of):
    x = rows(8)
    np.testing.assert_allclose(fw.aggregate("smea", x).update, newer.smea(x, 3), atol=1e-9)
    keep = np.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    result = SMEA(f=2).step({}, cohort_of(x), keep)[1]
    np.testing.assert_allclose(result.update, newer.smea(x[keep > 0], 2), atol=1e-9)
    assert result.weights[2] == 0
    for f in (4, -1):
        with pytest.raises(ValueError, match=rf"smea needs n > 2f clients and f >= 0; got n=8, f={f}"):
            fw.aggregate("smea", x, f=f)


def test_too_many_subsets_are_refused_with_their_number():
    wanted = (
        rf"limit=200000 subsets of n - f clients to try; got n=30, f=14, which have {comb(30, 14)}; give a smaller f"
    )
    with pytest.raises(ValueError, match=wanted):
        fw.aggregate("smea", rows(30))
    assert comb(9, 2) == 36
    fw.aggregate("smea", rows(9), f=2, limit=36)
    with pytest.raises(ValueError, match="limit=35 subsets"):
        fw.aggregate("smea", rows(9), f=2, limit=35)
