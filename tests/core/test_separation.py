"""Scores that tell two groups apart, against scikit-learn and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score

from fedwarden.core.separation import auroc, ranks, threshold

SCORES = st.lists(st.integers(-5, 5), min_size=1, max_size=12).map(lambda v: np.array(v, dtype=float))


@given(SCORES, SCORES)
def test_auroc_is_that_of_scikit_learn_ties_and_all(shifted, null):
    truth = np.r_[np.ones(len(shifted)), np.zeros(len(null))]
    assert auroc(shifted, null) == pytest.approx(roc_auc_score(truth, np.r_[shifted, null]))
    assert auroc(shifted, null) + auroc(null, shifted) == pytest.approx(1.0)


@given(SCORES, st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.5]))
def test_the_threshold_keeps_false_alarms_below_the_rate_and_is_the_smallest_that_does(null, rate):
    limit = threshold(null, rate)
    assert (null > limit).mean() <= rate
    lower = null[null < limit]
    assert not len(lower) or (null > lower.max()).mean() > rate


def test_a_rate_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"rate of false alarms lies in \[0, 1\); got 5"):
        threshold(np.ones(2), 5)


@given(st.lists(st.lists(st.integers(-3, 3), min_size=5, max_size=5), min_size=1, max_size=4))
def test_ranks_are_those_of_scipy_row_by_row(rows):
    values = np.array(rows, dtype=float)
    assert np.array_equal(ranks(values), rankdata(values, axis=1))
