"""Rules of one coordinate at a time, off their defaults."""

import numpy as np
import pytest
from scipy.stats import trim_mean

import fedwarden as fw
from fedwarden.aggregators.coordinate import Sign, TrimmedMean, trimmed_mean
from fedwarden_research.conformance import golden


def rows(n, d=7, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


@pytest.mark.parametrize("n", [5, 8, 9])
def test_the_least_and_the_most_that_can_be_trimmed(n):
    x = rows(n)
    np.testing.assert_allclose(fw.aggregate("trimmed_mean", x, b=0).update, x.mean(axis=0))
    most = (n - 1) // 2
    np.testing.assert_allclose(fw.aggregate("trimmed_mean", x, b=most).update, np.median(x, axis=0), atol=1e-12)
    with pytest.raises(ValueError, match=rf"trimmed mean needs n > 2b updates and b >= 0; got n={n}, b={most + 1}"):
        fw.aggregate("trimmed_mean", x, b=most + 1)
    with pytest.raises(ValueError, match=f"got n={n}, b=-1"):
        trimmed_mean(fw.Updates.of(x), -1)


@pytest.mark.parametrize(("n", "b"), [(3, 1), (9, 1), (10, 2), (14, 2), (15, 3)])
def test_by_default_a_fifth_is_trimmed_and_one_at_least(n, b):
    x = rows(n)
    np.testing.assert_allclose(fw.aggregate("trimmed_mean", x).update, trim_mean(x, (b + 0.01) / n), atol=1e-12)


def test_two_cannot_be_trimmed_by_default():
    with pytest.raises(ValueError, match="got n=2, b=1"):
        fw.aggregate("trimmed_mean", rows(2))


@pytest.mark.parametrize("name", ["median", "trimmed_mean"])
def test_counts_and_fractions_of_a_weight_do_not_matter(name, cohort_of):
    x, rule = rows(6), fw.Warden(aggregator=name).aggregator
    plain = rule.step({}, cohort_of(x), np.ones(6))[1]
    other = rule.step({}, cohort_of(x, counts=[1, 2, 3, 4, 5, 600]), np.linspace(0.1, 1.0, 6))[1]
    np.testing.assert_array_equal(plain.update, other.update)
    assert plain.weights is None


def test_what_is_trimmed_is_counted_among_those_that_are_left(cohort_of):
    x, weights = rows(6), np.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    rule = TrimmedMean(b=2)
    left = np.delete(x, 2, axis=0)
    np.testing.assert_allclose(rule.step({}, cohort_of(x), weights)[1].update, np.median(left, axis=0), atol=1e-12)
    weights[0] = 0.0
    with pytest.raises(ValueError, match="got n=4, b=2"):
        rule.step({}, cohort_of(x), weights)


@pytest.mark.parametrize("step", [0.0, 0.25, 3.0])
def test_a_step_of_a_given_size(step):
    x = rows(7)
    np.testing.assert_allclose(fw.aggregate("sign", x, step_size=step).update, golden.sign(x, step))


def test_the_usual_step_is_the_median_size_of_an_entry():
    x = np.array([[3.0, 4.0], [6.0, -8.0], [9.0, 12.0]])  # lengths 5, 10 and 15
    np.testing.assert_allclose(fw.aggregate("sign", x).update, np.full(2, 10 / np.sqrt(2)))


def test_weights_decide_a_vote_and_a_tie_moves_nothing(cohort_of):
    x = np.array([[1.0, 1.0], [1.0, -2.0], [-3.0, 0.0]])
    rule = Sign(step_size=1.0)
    assert rule.step({}, cohort_of(x), np.ones(3))[1].update.tolist() == [1.0, 0.0]
    assert rule.step({}, cohort_of(x), np.array([0.2, 0.3, 1.0]))[1].update.tolist() == [-1.0, -1.0]
    assert rule.step({}, cohort_of(x), np.array([1.0, 0.0, 1.0]))[1].update.tolist() == [0.0, 1.0]


def test_what_has_no_direction_is_averaged(cohort_of):
    x = np.array([[1.0, 40.0], [2.0, 10.0], [-9.0, 70.0]])
    updates = fw.Updates.of(x, measured=[(0, 1)])
    result = Sign().step({}, cohort_of(updates), np.array([1.0, 1.0, 0.5]))[1]
    np.testing.assert_allclose(result.update, [2.0, (40 + 10 + 35) / 2.5])  # the median of the sizes 1, 2 and 9
