"""ARC: which updates are shortened and how far, and any rule inside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedwarden as fw
from fedwarden.aggregators.mixing import ARC, arc_factors
from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden_research.conformance import golden


def rows(t=0, n=9, d=6):
    return np.random.default_rng(t).normal(size=(n, d)) + np.linspace(0, 1, d)


def test_the_published_example():
    """ByzFL's documentation: of three clients and f = 1 the longest is cut to the length of the second, sqrt(77)."""
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    factors = arc_factors(np.linalg.norm(x, axis=1), 1)
    np.testing.assert_allclose(factors[:, None] * x, [x[0], x[1], [4.41004009, 5.04004582, 5.67005155]], atol=1e-8)


@pytest.mark.parametrize(
    ("n", "f", "k"), [(10, 0, 0), (10, 1, 1), (10, 2, 3), (10, 3, 4), (10, 4, 4), (11, 5, 5), (3, 1, 1), (25, 5, 8)]
)
def test_how_many_are_shortened(n, f, k):
    """k = floor(2 (f / n) (n - f)), by hand: 1.8, 3.2, 4.2, 4.8; 60/11; 4/3; 8."""
    lengths = np.random.default_rng(0).permutation(np.arange(1.0, n + 1))
    factors = arc_factors(lengths, f)
    assert (factors < 1).sum() == k
    np.testing.assert_allclose(factors * lengths, np.minimum(lengths, n - k))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.data())
def test_nobody_is_longer_than_the_longest_left_alone(lengths, data):
    n = len(lengths)
    f = data.draw(st.integers(0, (n - 1) // 2))
    factors = arc_factors(np.array(lengths), f)
    after = factors * lengths
    assert ((factors >= 0) & (factors <= 1)).all()
    assert (factors < 1).sum() <= 2 * f
    assert after.max() <= max(length for length, factor in zip(lengths, factors, strict=True) if factor == 1) * (
        1 + 1e-9
    )


@pytest.mark.parametrize("f", [0, 1, 3])
@pytest.mark.parametrize(
    ("then", "loop"),
    [
        ("median", golden.median),
        ({"name": "trimmed_mean", "b": 3}, lambda y: golden.trimmed_mean(y, 3)),
        ({"name": "multi_krum", "f": 1, "m": 2}, lambda y: golden.multi_krum(y, 1, 2)),
        ({"name": "mean", "weighted": False}, golden.mean),
        (
            {"name": "nearest_neighbour_mixing", "f": 2, "then": "median"},
            lambda y: golden.nearest_neighbour_mixing(y, 2, golden.median),
        ),
        (make("aggregator", "krum", f=2), lambda y: golden.krum(y, 2)),
    ],
    ids=lambda value: "",
)
def test_a_name_a_table_or_a_thing_inside(f, then, loop):
    x = rows()
    np.testing.assert_allclose(fw.aggregate("arc", x, f=f, then=then).update, golden.arc(x, f, loop), atol=1e-9)


def test_defaults():
    x = rows(n=8)  # f = 3 for both, and b = 1
    want = golden.arc(x, 3, lambda y: golden.nearest_neighbour_mixing(y, 3, lambda z: golden.trimmed_mean(z, 1)))
    np.testing.assert_allclose(fw.aggregate("arc", x).update, want, atol=1e-9)


def test_the_rule_inside_knows_the_clients_their_weights_and_their_counts(cohort_of):
    """Clients c and g are not there; what is left is a weighted mean of updates that are shortened."""
    x, weights = rows(), np.array([1.0, 0.5, 0.0, 1.0, 1.0, 0.2, 0.0, 1.0, 1.0])
    counts = np.arange(1.0, 10.0)
    result = ARC(2, "mean").step({}, cohort_of(x, counts=counts), weights)[1]
    left = np.flatnonzero(weights)
    factors = arc_factors(np.linalg.norm(x[left], axis=1), 2)
    shares = (weights * counts)[left] / (weights * counts).sum()
    np.testing.assert_allclose(result.update, (shares * factors) @ x[left], atol=1e-12)
    assert result.weights is None
    state = ARC(2, "foolsgold").step({}, cohort_of(x), weights)[0]
    assert sorted(state) == list("abdefhi")


def test_options_that_are_none():
    for f in (5, -1):
        with pytest.raises(ValueError, match=rf"arc needs n > 2f clients and f >= 0; got n=9, f={f}"):
            fw.aggregate("arc", rows(), f=f)
    with pytest.raises(ConfigError, match="did you mean 'median'"):
        fw.aggregate("arc", rows(), then="medain")
