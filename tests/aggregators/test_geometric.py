"""The geometric median with weights."""

import numpy as np
import pytest
from scipy.optimize import minimize

import fedwarden as fw
from fedwarden.aggregators.mean import GeometricMedian


def best(x, shares):
    def cost(z):
        return float(shares @ np.linalg.norm(x - z, axis=1))

    return minimize(cost, np.median(x, axis=0), method="BFGS", options={"gtol": 1e-10}).x


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_counts_count_only_where_asked(weighted, seed, cohort_of):
    rng = np.random.default_rng(seed)
    x, counts, weights = rng.normal(size=(8, 4)), rng.integers(1, 9, size=8), rng.uniform(0.3, 1.0, size=8)
    weights[5] = 0.0
    result = GeometricMedian(weighted).step({}, cohort_of(x, counts=counts), weights)[1]
    want = best(x, weights * (counts if weighted else 1.0))
    np.testing.assert_allclose(result.update, want, atol=2e-3)
    np.testing.assert_allclose(result.update, result.weights @ x, atol=1e-9)
    assert result.weights[5] == 0
    assert result.weights.sum() == pytest.approx(1.0)


def test_half_of_the_weight_is_the_median_by_itself():
    x = np.random.default_rng(0).normal(size=(5, 3))
    counts = [1, 1, 1, 1, 4]
    np.testing.assert_allclose(fw.aggregate("geometric_median", x, counts, weighted=True).update, x[4], atol=1e-4)
    even = fw.aggregate("geometric_median", x, counts).update
    np.testing.assert_array_equal(even, fw.aggregate("geometric_median", x).update)
    assert np.linalg.norm(even.numpy() - x[4]) > 0.1
