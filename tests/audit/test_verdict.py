"""Verdicts against scikit-learn and by hand."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedwarden.audit.verdict import Leakage, Sight, interval, leakage, sees
from fedwarden.core.separation import auroc


def test_the_interval_is_the_bootstrap_of_pairs():
    rng = np.random.default_rng(0)
    null = rng.normal(size=20)
    shifted = null + 0.8
    low, high = interval(shifted, null, np.random.default_rng(1), draws=200)
    picks = np.random.default_rng(1).integers(20, size=(200, 20))
    truth = np.r_[np.ones(20), np.zeros(20)]
    values = [roc_auc_score(truth, np.r_[shifted[i], null[i]]) for i in picks]
    assert (low, high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))
    assert low < auroc(shifted, null) < high


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng, truth, inside = np.random.default_rng(2), 0.7602, 0  # Phi(1 / sqrt 2) for a shift by one deviation
    for _ in range(200):
        low, high = interval(rng.normal(1, 1, 25), rng.normal(0, 1, 30), rng, draws=300)
        inside += low <= truth <= high
    assert 0.88 <= inside / 200 <= 0.99


def test_a_source_that_sees_only_new_samples_is_called_out():
    rng = np.random.default_rng(3)
    still, swapped, shifted = rng.normal(0, 1, 15), rng.normal(9, 1, 15), rng.normal(9, 1, 15)
    nulls = {"no change": still, "fresh swap": swapped}
    found = leakage(shifted, nulls, rng)
    assert found["no change"].auroc == 1.0
    assert found["no change"].tpr == 1.0
    assert abs(found["fresh swap"].auroc - 0.5) < 0.3
    assert sees(found) == Sight("does not show", "shows")
    assert sees(leakage(shifted + 9, nulls, rng)) == Sight("shows", "shows")
    assert sees(leakage(rng.normal(0, 1, 15), nulls, rng)) == Sight("does not show", "does not show")


def test_perfect_separation_of_two_seeds_proves_nothing():
    found = leakage(np.array([7.0, 8.0, 9.0]), {"no change": np.array([1.0, 2.0, 3.0])}, np.random.default_rng(0))
    assert (found["no change"].low, found["no change"].p) == (1.0, pytest.approx(1 / 20))  # 1 of (6 choose 3) orders
    two = leakage(np.array([8.0, 9.0]), {"no change": np.array([1.0, 2.0])}, np.random.default_rng(0))
    assert sees(two) == Sight("cannot tell", "cannot tell")


def test_what_cannot_be_judged_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"finite scores.*'no change'"):
        leakage(np.array([1.0, np.nan]), {"no change": np.ones(2)}, rng)
    with pytest.raises(ValueError, match="finite scores"):
        leakage(np.ones(2), {"no change": np.array([])}, rng)
    with pytest.raises(ValueError, match="needs the null 'no change'; got fresh swap"):
        sees({"fresh swap": Leakage(1.0, 1.0, 1.0, 0.0, 1.0, 0.0)})
