"""One call for one aggregation."""

import numpy as np
import pytest
import torch

import fedwarden as fw


def test_the_mean_of_every_form():
    x = np.random.default_rng(0).normal(size=(4, 6))
    want = x.mean(axis=0)
    for rows in (x, torch.from_numpy(x), list(x), [[row[:2].reshape(2, 1), row[2:]] for row in x], fw.Updates.of(x)):
        result = fw.aggregate("mean", rows)
        np.testing.assert_allclose(result.update, want, atol=1e-12)
        np.testing.assert_allclose(result.weights, 0.25)


def test_counts_weigh_unless_told_otherwise():
    x, counts = np.array([[1.0], [4.0]]), [2, 1]
    assert fw.aggregate("mean", x, counts).update.item() == pytest.approx(2.0)
    assert fw.aggregate("mean", x, counts, weighted=False).update.item() == pytest.approx(2.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_rows_that_are_not_finite_get_no_weight(bad):
    result = fw.aggregate("mean", np.array([[1.0, 2.0], [bad, 0.0], [3.0, 4.0]]))
    assert result.update.tolist() == [2.0, 3.0]
    assert result.weights.tolist() == [0.5, 0.0, 0.5]


def test_nothing_to_combine():
    with pytest.raises(ValueError, match="mean needs at least one update of finite numbers; got 2, none"):
        fw.aggregate("mean", np.full((2, 3), np.nan))
    with pytest.raises(ValueError, match="positive sum; got a sum of 0"):
        fw.aggregate("mean", np.ones((2, 3)), [0, 0])
    with pytest.raises(ValueError, match="one id, row and count per client; got 2 ids, 2 rows, 3 counts"):
        fw.aggregate("mean", np.ones((2, 3)), [1, 1, 1])
