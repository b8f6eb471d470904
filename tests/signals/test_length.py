"""Updates of an unusual length."""

import warnings

import numpy as np
import pytest

from fedwarden.signals.length import UpdateLength, UpdateNorm, length_ratio


def test_longer_and_shorter_count_alike(cohort_of):
    x = np.eye(5) * np.array([1.0, 2.0, 2.0, 2.0, 4.0])
    np.testing.assert_allclose(UpdateNorm()(cohort_of(x)), [np.log(2), 0, 0, 0, np.log(2)], atol=1e-9)
    np.testing.assert_allclose(UpdateNorm()(cohort_of(1e-3 * x)), [np.log(2), 0, 0, 0, np.log(2)], atol=1e-6)


def test_the_median_is_that_of_the_trusted(cohort_of):
    x = np.eye(5) * np.array([1.0, 1.0, 50.0, 50.0, 50.0])
    got = UpdateNorm()(cohort_of(x, trusted=[True, True, False, False, False]))
    np.testing.assert_allclose(got, [0, 0, *[np.log(50)] * 3], atol=1e-9)


@pytest.mark.parametrize("length", [0.0, 1e-12, 1.0, 1e15])
def test_scores_are_finite_whatever_is_zero(length):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        among_zeros = length_ratio(np.array([0.0, 0.0, 0.0, length]), 0.0)
        among_ones = length_ratio(np.array([1.0, 1.0, 1.0, length]), 1.0)
    assert among_zeros[:3].tolist() == among_ones[:3].tolist() == [0.0] * 3
    assert np.isfinite([among_zeros, among_ones]).all()
    assert (among_zeros[3] > 600) == (length > 0)
    if length == 0:
        assert among_ones[3] == pytest.approx(np.log(1e6))  # the shortest told apart


def test_update_length_is_the_log_of_how_many_times_longer_than_the_median(cohort_of):
    x = np.eye(5) * np.array([1.0, 2.0, 2.0, 2.0, 6.0])
    want = [np.log(0.5), 0, 0, 0, np.log(3)]
    np.testing.assert_allclose(UpdateLength()(cohort_of(x)), want, atol=1e-9)
    np.testing.assert_allclose(UpdateLength()(cohort_of(1e-3 * x)), want, atol=1e-6)
