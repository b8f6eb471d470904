"""One call for one aggregation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.aggregators.common import among, widen


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


def test_a_rule_among_those_with_a_weight_sees_nobody_else():
    x = fw.Updates.of(np.arange(10.0).reshape(5, 2))
    seen = []

    def rule(kept):
        seen.append([block.tolist() for _, _, block in kept.blocks()])
        return fw.Aggregate(torch.zeros(2), np.full(len(kept), 1 / len(kept)))

    result = among(x, np.array([0.0, 1.0, 0.0, 0.2, 1e-9]), rule)
    assert seen == [[[[2.0, 3.0], [6.0, 7.0], [8.0, 9.0]]]]
    np.testing.assert_allclose(result.weights, [0, 1 / 3, 0, 1 / 3, 1 / 3])


def test_weights_are_widened_and_none_stays_none():
    update = torch.ones(2)
    assert widen(fw.Aggregate(update, np.array([0.25, 0.75])), [3, 1], 5).weights.tolist() == [0, 0.75, 0, 0.25, 0]
    bare = fw.Aggregate(update)
    assert widen(bare, [0], 5) is bare
