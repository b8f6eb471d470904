"""Divide-and-Conquer: scores by singular vectors, draws by round and seed, and an intersection that may be empty."""

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden_research.aggregators.dnc import DnC, kept_by_all, outlier_scores
from fedwarden_research.conformance import newer


def rows(n=10, d=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)) * np.linspace(0.5, 2.0, n)[:, None]


def test_scores_are_those_of_a_singular_value_decomposition():
    for n, d in ((5, 40), (12, 3), (4, 1)):
        x = rows(n, d)
        z = x - x.mean(axis=0)
        np.testing.assert_allclose(outlier_scores(x), (z @ np.linalg.svd(z)[2][0]) ** 2, atol=1e-9)
    assert outlier_scores(np.ones((3, 2))).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("f", "c"), [(0, 1.0), (1, 1.0), (2, 0.5), (2, 1.5), (3, 1.0), (3, 1.1), (4, 2.0)])
def test_all_coordinates_by_the_loop(f, c):
    x = rows()
    result = fw.aggregate("dnc", x, f=f, c=c)
    np.testing.assert_allclose(result.update, newer.dnc(x, f, c), atol=1e-9)
    assert (result.weights == 0).sum() == {(2, 0.5): 1, (2, 1.5): 3, (3, 1.1): 4, (4, 2.0): 8}.get((f, c), f)


def test_several_samples_by_the_loop():
    x, rng = rows(12, 40), np.random.default_rng(1)
    samples = [sorted(rng.choice(40, 7, replace=False)) for _ in range(4)]
    kept = kept_by_all([x[:, s] for s in samples], f=2, c=1.0)
    np.testing.assert_allclose(x[kept].mean(axis=0), newer.dnc(x, 2, samples=samples), atol=1e-12)
    assert 12 - 4 * 2 <= len(kept) <= 10


def test_an_attack_on_a_few_coordinates_is_found_where_they_are_drawn(cohort_of):
    """Two of twelve clients move coordinates 0 to 2 alone: only a draw that has one of them can tell."""
    x = 0.1 * np.random.default_rng(5).normal(size=(12, 30))
    x[:2, :3] += 50.0
    out, seen = [], []
    for t in range(1, 9):
        weights = DnC(f=2, sample=4, steps=1, seed=3).step({}, cohort_of(x, round=t), np.ones(12))[1].weights
        out.append(frozenset(np.flatnonzero(weights == 0)))
        seen.append(out[-1] == {0, 1})
    assert any(seen)
    assert not all(seen)
    assert len(set(out)) > 2  # another draw in every round
    many = DnC(f=2, sample=4, steps=8).step({}, cohort_of(x), np.ones(12))[1].weights
    assert many[:2].tolist() == [0.0, 0.0]


def test_draws_are_of_the_seed_and_the_round_and_not_of_the_order(cohort_of):
    x = rows(12, 60)
    rule = DnC(f=2, sample=5, steps=2, seed=1)
    order = np.random.default_rng(0).permutation(12)
    a = rule.step({}, cohort_of(x), np.ones(12))[1]
    b = rule.step({}, cohort_of(x[order], [chr(ord("a") + i) for i in order]), np.ones(12))[1]
    np.testing.assert_allclose(b.weights, a.weights[order])
    others = [DnC(f=2, sample=5, steps=2, seed=s).step({}, cohort_of(x), np.ones(12))[1].weights for s in range(2, 8)]
    assert any((w != a.weights).any() for w in others)


def test_columns_that_are_not_measured_are_never_drawn():
    x = rows(10, 50)
    x[:, 10:40] *= 1e6
    layers = [[r[:10], r[10:40], r[40:]] for r in x]
    got = fw.aggregate("dnc", fw.Updates.of(layers, measured=[(0, 10), (40, 50)]), f=2, steps=1)
    want = newer.dnc(x, 2, samples=[[*range(10), *range(40, 50)]])
    np.testing.assert_allclose(got.update, want, rtol=1e-9)


def test_options():
    x = rows()
    np.testing.assert_allclose(fw.aggregate("dnc", x).update, newer.dnc(x, 2), atol=1e-9)
    np.testing.assert_allclose(fw.aggregate("dnc", x[:4]).update, newer.dnc(x[:4], 1), atol=1e-9)
    for f, c in ((5, 1.0), (-1, 1.0), (2, -1.0), (4, 2.5)):
        with pytest.raises(
            ValueError, match=rf"dnc needs n > 2f clients, f >= 0 and 0 <= c f < n; got n=10, f={f}, c={c}"
        ):
            fw.aggregate("dnc", x, f=f, c=c)
    for options in ({"sample": 0}, {"steps": 0}):
        with pytest.raises(ConfigError, match="dnc needs a coordinate and a step or more; got sample="):
            fw.aggregate("dnc", x, **options)


def test_nobody_left_is_an_error():
    """Each of three clients is far out in a coordinate of its own."""
    samples = [np.where(np.arange(3) == i, 9.0, [0.0, 0.1, 0.2])[:, None] for i in range(3)]
    assert kept_by_all(samples[:2], 1, 1.0).tolist() == [2]
    with pytest.raises(ValueError, match="dnc keeps no client: in 3 draws each of n=3 clients was once among the 1"):
        kept_by_all(samples, 1, 1.0)
