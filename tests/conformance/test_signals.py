"""Laws of every registered signal at its default options."""

from __future__ import annotations

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.registry import make

N, D = 12, 50
pytestmark = pytest.mark.parametrize("name", fw.names("signal"))


def rows():
    return np.random.default_rng(0).normal(size=(N, D))


def test_one_finite_score_per_client(name, cohort_of):
    for n in (1, 2, 5, N):
        scores = make("signal", name)(cohort_of(rows()[:n]))
        assert scores.shape == (n,)
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()


def test_a_permutation_of_the_clients_permutes_the_scores(name, cohort_of):
    signal, order = make("signal", name), np.random.default_rng(1).permutation(N)
    counts = np.arange(1.0, N + 1)
    a = signal(cohort_of(rows(), counts=counts))
    b = signal(cohort_of(rows()[order], counts=counts[order]))
    np.testing.assert_allclose(b, a[order], rtol=1e-9)


def test_higher_is_more_suspicious(name, cohort_of):
    x = rows()
    x[7] += 100.0
    assert make("signal", name)(cohort_of(x)).argmax() == 7


def test_a_client_that_is_not_trusted_does_not_change_the_scores_of_the_others(name, cohort_of):
    signal, x = make("signal", name), rows()
    x[3] += 100.0
    trusted = np.arange(N) != 3
    a = signal(cohort_of(x, trusted=trusted))
    b = signal(cohort_of(x[trusted]))
    np.testing.assert_allclose(a[trusted], b, rtol=1e-6)
    assert a[3] > a[trusted].max()


def test_a_signal_only_reads(name, cohort_of):
    x = rows()
    make("signal", name)(cohort_of(x))
    assert np.array_equal(x, rows())
