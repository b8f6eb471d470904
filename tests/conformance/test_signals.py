"""Laws of every registered signal at its default options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedwarden as fw
from fedwarden.core.protocols import equip
from fedwarden.core.registry import make

N, D = 12, 50
pytestmark = pytest.mark.parametrize("name", fw.names("signal"))


def rows():
    return np.random.default_rng(0).normal(size=(N, D))


def signal_of(name):
    """Cohort -> scores; a signal that needs a server gets one with a model of D parameters and samples."""
    rng = np.random.default_rng(2)
    probe, labels = torch.tensor(rng.normal(size=(40, 3)), dtype=torch.float32), torch.tensor(rng.integers(2, size=40))
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    params = torch.tensor(10 * rng.normal(size=D), dtype=torch.float32)
    signal = equip(make("signal", name), fw.Server(model, probe, labels))

    def scores(cohort):
        reading = signal(replace(cohort, params=params))
        return reading.values if isinstance(reading, fw.Reading) else reading

    return scores


def test_one_finite_score_per_client(name, cohort_of):
    for n in (1, 2, 5, N):
        scores = signal_of(name)(cohort_of(rows()[:n]))
        assert scores.shape == (n,)
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()


def test_a_permutation_of_the_clients_permutes_the_scores(name, cohort_of):
    signal, order = signal_of(name), np.random.default_rng(1).permutation(N)
    counts = np.arange(1.0, N + 1)
    a = signal(cohort_of(rows(), counts=counts))
    b = signal(cohort_of(rows()[order], counts=counts[order]))
    np.testing.assert_allclose(b, a[order], rtol=1e-9)


def spoil(name, x, i):
    """Make client i what the signal is there to see: far out, unless it looks for something else."""
    if name == "direction":
        x += 1.0
        x[i] = -x.mean(axis=0)
    elif name == "twins":
        x[i] = x[i + 1]
    else:
        x[i] += 100.0


def test_higher_is_more_suspicious(name, cohort_of):
    x = rows()
    spoil(name, x, 7)
    scores = signal_of(name)(cohort_of(x))
    assert scores[7] == scores.max()


def test_a_client_that_is_not_trusted_does_not_change_the_scores_of_the_others(name, cohort_of):
    signal, x = signal_of(name), rows()
    x[3] += 100.0
    trusted = np.arange(N) != 3
    a = signal(cohort_of(x, trusted=trusted))
    b = signal(cohort_of(x[trusted]))
    np.testing.assert_allclose(a[trusted], b, rtol=1e-6, atol=1e-9)


def test_a_signal_only_reads(name, cohort_of):
    x = rows()
    signal_of(name)(cohort_of(x))
    assert np.array_equal(x, rows())
