"""Outputs against scikit-learn and scipy, and the false alarms of the change of answers by simulation."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax
from sklearn.metrics import accuracy_score, log_loss
from sklearn.metrics.pairwise import rbf_kernel

from fedwarden.audit.outputs import (
    accuracy,
    bbse,
    change_p,
    ks,
    loss,
    mean_logits,
    mean_softmax,
    mmd,
    standardised_change,
)
from fedwarden.core.stats import spent_level


def sample(n=60, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    return 2 * rng.normal(size=(n, classes)) + 3 * np.eye(classes)[labels], labels


def test_loss_and_accuracy_are_those_of_scikit_learn():
    logits, labels = sample()
    assert loss(logits, labels) == pytest.approx(log_loss(labels, softmax(logits, axis=1)))
    assert accuracy(logits, labels) == accuracy_score(labels, logits.argmax(axis=1))


def test_mean_logits_do_not_hang_on_what_softmax_ignores():
    logits, _ = sample()
    offset = np.random.default_rng(1).normal(size=(60, 1))
    assert mean_logits(logits + offset) == pytest.approx(mean_logits(logits))
    assert mean_logits(logits).sum() == pytest.approx(0.0, abs=1e-12)


def test_mean_logits_move_by_the_log_of_the_prior():
    logits, _ = sample(classes=2)
    prior = np.log(np.array([0.8, 0.2]) / 0.5)  # what Bayes adds when class 0 becomes four times as frequent
    moved = mean_logits(logits + prior) - mean_logits(logits)
    assert moved[0] - moved[1] == pytest.approx(np.log(4))


def test_mean_softmax_counts_every_class_of_the_probe_the_same():
    logits, labels = sample()
    probabilities = softmax(logits, axis=1)
    expected = np.mean([probabilities[labels == c].mean(axis=0) for c in range(4)], axis=0)
    assert mean_softmax(logits, labels) == pytest.approx(expected)
    more = np.r_[np.arange(60), np.repeat(np.flatnonzero(labels == 2), 5)]
    assert mean_softmax(logits[more], labels[more]) == pytest.approx(expected)
    assert mean_softmax(logits, labels).sum() == pytest.approx(1.0)


def test_ks_is_the_largest_of_scipy_over_classes():
    before, after = sample(seed=0)[0], sample(seed=1)[0]
    p, q = softmax(before, axis=1), softmax(after, axis=1)
    assert ks(before, after) == max(stats.ks_2samp(p[:, c], q[:, c]).statistic for c in range(4))
    assert ks(before, before) == 0.0


@pytest.mark.parametrize("n", [7, 60, 800])
def test_mmd_is_that_of_the_kernels_of_scikit_learn(n):
    before, after = sample(n, seed=0)[0], sample(n, seed=1)[0] + [1.0, 0, 0, 0]
    p, q = softmax(before, axis=1), softmax(after, axis=1)
    pooled = np.concatenate([p, q])
    pooled = pooled[:: 1 if n < 800 else 2]
    width = np.median([np.linalg.norm(x - y) for i, x in enumerate(pooled) for y in pooled[:i]])
    gamma = 1 / (2 * width**2)
    expected = rbf_kernel(p, p, gamma).mean() + rbf_kernel(q, q, gamma).mean() - 2 * rbf_kernel(p, q, gamma).mean()
    assert mmd(before, after) == pytest.approx(expected, rel=1e-8)
    assert mmd(before, before) == pytest.approx(0.0, abs=1e-12)


def test_bbse_recovers_the_labels_of_a_shifted_population():
    given = np.array([[0.8, 0.1, 0.1], [0.1, 0.7, 0.2], [0.1, 0.2, 0.7]])  # P(prediction | label), columns
    source, target = np.array([0.3, 0.3, 0.4]), np.array([0.6, 0.1, 0.3])
    assert bbse(given * source, given @ target) == pytest.approx(target / source)


def test_a_change_is_standardised_by_its_past_whatever_its_unit():
    rng = np.random.default_rng(0)
    past, change = rng.normal(size=(9, 10)), rng.normal(size=10)
    z = standardised_change(change, past)
    assert standardised_change(1e-6 * change, 1e-6 * past) == pytest.approx(z)
    assert standardised_change(change + 5, past + 5) == pytest.approx(z)
    v = past.var(axis=0, ddof=1)
    assert z == pytest.approx((change - past.mean(axis=0)) / np.sqrt((v + np.median(v)) / 2))


def test_a_class_that_held_still_by_chance_does_not_cry_wolf():
    past = np.random.default_rng(0).normal(size=(4, 10))
    past[:, 3] = 1e-9 * past[:, 3]
    z = standardised_change(np.full(10, 1.0), past)
    assert abs(z[3]) < 5


def test_the_past_may_be_all_zeros():
    assert np.isfinite(standardised_change(np.zeros(3), np.zeros((4, 3)))).all()
    assert change_p(np.zeros(3), np.zeros((4, 3))) == 1.0
    assert change_p(np.ones(3), np.zeros((4, 3))) == 0.0


def test_what_is_not_a_number_stays_one():
    assert np.isnan(change_p(np.array([np.nan, 0.0]), np.arange(6.0).reshape(3, 2)))
    assert np.isnan(accuracy(np.array([[np.nan, 0.0]]), np.array([0])))


def test_two_past_changes_are_needed():
    with pytest.raises(ValueError, match="at least 2 past changes; got 1"):
        standardised_change(np.zeros(3), np.zeros((1, 3)))


def test_the_p_value_of_one_class_is_that_of_a_prediction_interval():
    past, change = np.array([[0.3], [-1.0], [0.4], [2.0]]), np.array([4.0])
    t = (4.0 - past.mean()) / (past.std(ddof=1) * np.sqrt(1 + 1 / 4))
    assert change_p(change, past) == pytest.approx(2 * stats.t.sf(t, 3))


def test_a_run_gives_a_false_alarm_with_probability_at_most_alpha():
    rng, runs, alarms = np.random.default_rng(2), 1500, 0
    mix = rng.normal(size=(6, 6))  # classes hang together
    for _ in range(runs):
        changes = rng.normal(size=(16, 6)) @ mix + 3.0
        p = [change_p(changes[t], changes[:t]) for t in range(2, 16)]
        alarms += any(value <= spent_level(0.1, i + 1) for i, value in enumerate(p))
    assert stats.binomtest(alarms, runs, 0.1, alternative="greater").pvalue > 0.001
