"""Krum, Multi-Krum and Bulyan at the edges of their options."""

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.aggregators.krum import Bulyan, Krum, MultiKrum, bulyan_selection, multi_krum, ranking
from fedwarden_research.conformance import golden


def rows(n, d=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


@pytest.mark.parametrize(("n", "f"), [(9, 0), (9, 1), (9, 3), (8, 2), (3, 0)])
def test_every_m_from_one_to_all_but_the_attackers(n, f):
    for seed in range(4):
        x = rows(n, seed=seed)
        for m in range(1, n - f + 1):
            result = fw.aggregate("multi_krum", x, f=f, m=m)
            np.testing.assert_allclose(result.update, golden.multi_krum(x, f, m), atol=1e-9)
            assert sorted(result.weights) == pytest.approx([0.0] * (n - m) + [1 / m] * m)
        np.testing.assert_allclose(fw.aggregate("krum", x, f=f).update, golden.krum(x, f), atol=1e-9)


@pytest.mark.parametrize("m", [0, 8, -1])
def test_an_m_that_there_is_not(m):
    with pytest.raises(ValueError, match=rf"multi-krum needs 1 <= m <= n - f; got m={m}, n=9, f=2"):
        fw.aggregate("multi_krum", rows(9), f=2, m=m)


@pytest.mark.parametrize(
    ("rule", "n", "f", "text"),
    [
        ("krum", 8, 3, "krum needs n >= 2f \\+ 3 clients and f >= 0; got n=8, f=3"),
        ("krum", 8, -1, "got n=8, f=-1"),
        ("multi_krum", 2, None, "got n=2, f=0"),
        ("bulyan", 10, 2, "bulyan needs n >= 4f \\+ 3 clients and f >= 0; got n=10, f=2"),
        ("bulyan", 6, None, "got n=6, f=1"),
        ("bulyan", 9, -1, "got n=9, f=-1"),
    ],
)
def test_too_few_clients(rule, n, f, text):
    with pytest.raises(ValueError, match=text):
        fw.aggregate(rule, rows(n), f=f)


@pytest.mark.parametrize("n", [3, 4, 5, 8, 11])
def test_defaults_are_the_most_that_is_tolerated(n):
    x, f = rows(n), (n - 3) // 2  # n >= 2f + 3
    np.testing.assert_allclose(fw.aggregate("krum", x).update, golden.krum(x, f), atol=1e-9)
    np.testing.assert_allclose(fw.aggregate("multi_krum", x).update, golden.multi_krum(x, f, n - f - 2), atol=1e-9)
    if n >= 7:
        want = golden.bulyan(x, (n - 3) // 4)
        np.testing.assert_allclose(fw.aggregate("bulyan", x).update, want, atol=1e-9)


def test_who_is_left_out_is_no_neighbour(cohort_of):
    """Client a is the heart of everything; without it another is chosen, and its weight stays 0."""
    x = np.array([[0.0], [1.0], [-1.0], [3.0], [-3.2], [1.1], [0.1]])
    assert Krum(f=1).step({}, cohort_of(x), np.ones(7))[1].weights.tolist() == [0, 0, 0, 0, 0, 0, 1]
    weights = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    kept = [0, 1, 2, 3, 4, 5]
    for rule, want in (
        (Krum(f=1), golden.krum(x[kept], 1)),
        (MultiKrum(f=1, m=4), golden.multi_krum(x[kept], 1, 4)),
        (Bulyan(f=0), x[kept].mean(axis=0)),
    ):
        result = rule.step({}, cohort_of(x), weights)[1]
        np.testing.assert_allclose(result.update, want)
        assert result.weights is None or (result.weights[6] == 0 and len(result.weights) == 7)


def test_several_attackers_that_agree_are_not_chosen():
    """Four of eleven at one point have no distance to each other, yet too few neighbours there: n - f - 2 are 5."""
    x = rows(11)
    x[:4] = 20.0
    assert multi_krum(fw.Updates.of(x), 4, 7).weights[:4].tolist() == [0.0] * 4


@pytest.mark.parametrize(("n", "f"), [(7, 1), (11, 2), (23, 5)])
def test_bulyan_selects_by_krum_among_those_left(n, f):
    """By the definition: the ranking is made anew each time. Points on a grid tie, and one is infinitely far."""
    points = np.random.default_rng(n).integers(0, 3, size=(n, 2)).astype(float)
    squares = ((points[:, None] - points) ** 2).sum(axis=2)
    squares[0, 1:] = squares[1:, 0] = np.inf
    left, chosen = list(range(n)), []
    while len(chosen) < n - 2 * f:
        chosen.append(left.pop(int(ranking(squares[np.ix_(left, left)], max(len(left) - f - 2, 1))[0])))
    assert bulyan_selection(squares, f) == chosen
