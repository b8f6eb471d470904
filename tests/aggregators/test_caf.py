"""CAF: the filter by hand, by the loop in d dimensions, and what no choice of coordinates may change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ortho_group

import fedwarden as fw
from fedwarden_research.aggregators.caf import CAF, caf_shares
from fedwarden_research.conformance import newer


def rows(n=9, d=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)) * np.linspace(0.5, 2.0, n)[:, None]


def test_two_steps_by_hand():
    """Points 0, 0, 0, 0, 1 and -9: the mean is -4/3, and the squared distances from it are 16/9, 49/9 and 529/9."""
    points = np.array([0.0, 0.0, 0.0, 0.0, 1.0, -9.0])
    first = np.array([1 - 16 / 529] * 4 + [1 - 49 / 529, 0.0])
    centre = first @ points / first.sum()
    variance = first @ (points - centre) ** 2 / first.sum()
    tau = (points - centre) ** 2  # the largest of those left is that of the point 1, which goes
    second = first * (1 - tau / tau[4]) * (first > 0)
    assert second.sum() > 6 - 2 * 2  # so that there is a third mean with f = 2: that of the zeros, without variance
    np.testing.assert_allclose(caf_shares(np.outer(points, points), 2), [0.25, 0.25, 0.25, 0.25, 0.0, 0.0], atol=1e-12)
    assert first.sum() > 6 - 2 > second.sum()  # and with f = 1 the second is the last, of less variance than the first
    assert variance < points.var()
    np.testing.assert_allclose(caf_shares(np.outer(points, points), 1), first / first.sum(), atol=1e-12)


def test_the_published_example():
    """ByzFL's documentation prints 4, 5, 6 for three clients on a line: the outer two go at once."""
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    np.testing.assert_allclose(fw.aggregate("caf", x, f=1).update, [4.0, 5.0, 6.0], atol=1e-12)


def test_a_far_client_that_is_out_does_not_hold_the_others():
    """Its tau stays 1e12 times that of the others: were it the largest, no second client would lose its weight."""
    x = rows(10, 17)
    x[0], x[1] = 1e6, 30.0
    weights = fw.aggregate("caf", x, f=2).weights
    assert weights[:2].tolist() == [0.0, 0.0]
    assert (weights[2:] > 0.02).all()


@given(st.integers(0, 10_000), st.integers(3, 11), st.integers(1, 5))
def test_turning_moving_and_scaling_change_no_share(seed, n, d):
    rng = np.random.default_rng(seed)
    x, f = rng.normal(size=(n, d)), int(rng.integers(0, (n - 1) // 2 + 1))
    turn = ortho_group.rvs(d, random_state=seed) if d > 1 else -np.eye(1)
    a, b = caf_shares(x @ x.T, f), caf_shares((y := 3.0 * x @ turn + 2.0) @ y.T, f)
    np.testing.assert_allclose(a, b, atol=1e-6)
    assert (a >= 0).all()
    assert a.sum() == pytest.approx(1.0)


def test_attackers_that_agree_are_left_out():
    for seed in range(5):
        x = rows(20, 50, seed)
        x[:8] = 4.0 + 0.01 * x[:8]
        assert fw.aggregate("caf", x, f=8).weights[:8].sum() < 0.01


def test_options(cohort_of):
    x = rows(8)
    np.testing.assert_allclose(fw.aggregate("caf", x).update, newer.caf(x, 3), atol=1e-9)
    np.testing.assert_allclose(fw.aggregate("caf", x, f=0).update, x.mean(axis=0), atol=1e-12)
    keep = np.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    result = CAF(f=2).step({}, cohort_of(x), keep)[1]
    np.testing.assert_allclose(result.update, newer.caf(x[keep > 0], 2), atol=1e-9)
    assert result.weights[2] == 0
    for f in (4, -1):
        with pytest.raises(ValueError, match=rf"caf needs n > 2f clients and f >= 0; got n=8, f={f}"):
            fw.aggregate("caf", x, f=f)
