"""Laws of every registered aggregator: those of the suite, and those of its state and weights at default options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.conformance.laws import LAWS, examine
from fedwarden.conformance.subject import RULES, Subject, registered
from fedwarden.core.protocols import equip
from fedwarden.core.registry import make

N, D = 13, 40
SERVER = fw.Server(root=lambda params, round: torch.ones(D, dtype=torch.float64))
CONDITIONAL = {"below-precondition", "defaults"}  # a rule may be defined from one client on, or promise nothing
pytestmark = pytest.mark.parametrize("name", fw.names("aggregator"))


def rows(t=1):
    return np.random.default_rng(t).normal(1.0, 1.0, size=(N, D))


def counts():
    return np.random.default_rng(9).integers(5, 50, size=N).astype(float)


def play(name, cohorts, weights):
    """The last result of several rounds, so that an aggregator with a memory uses it."""
    aggregator = equip(make("aggregator", name), SERVER)
    state = aggregator.init()
    for cohort in cohorts:
        state, result = aggregator.step(state, replace(cohort, params=torch.zeros(D)), weights)
    return result


def ids_of(order):
    return [f"client {i}" for i in order]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_law(name, law):
    finding = examine(Subject.of(registered(name), name), law)
    assert finding.status != "broken", finding.note
    if name in RULES and name not in law.exceptions and law.name not in CONDITIONAL:
        assert finding.status == "kept", finding.note


def test_an_update_has_one_finite_number_per_parameter(name, cohort_of):
    result = play(name, [cohort_of(rows(), counts=counts())], np.ones(N))
    assert result.update.shape == (D,)
    assert np.isfinite(result.update.numpy()).all()


def test_a_permutation_of_the_clients_permutes_the_result(name, cohort_of):
    order = np.random.default_rng(0).permutation(N)
    weights = np.linspace(0.2, 1.0, N)
    a = play(name, [cohort_of(rows(t), ids_of(range(N)), counts(), t) for t in (1, 2, 3)], weights)
    b = play(name, [cohort_of(rows(t)[order], ids_of(order), counts()[order], t) for t in (1, 2, 3)], weights[order])
    np.testing.assert_allclose(b.update, a.update, atol=1e-9)
    assert (a.weights is None) == (b.weights is None)
    if a.weights is not None:
        np.testing.assert_allclose(b.weights, a.weights[order], atol=1e-9)


def test_a_client_of_weight_zero_does_not_count(name, cohort_of):
    x = [rows(t) for t in (1, 2)]
    for y in x:
        y[4] *= -1e6
    rest = [i for i in range(N) if i != 4]
    weights = (np.arange(N) != 4).astype(float)
    a = play(name, [cohort_of(y, ids_of(range(N)), counts(), t) for t, y in enumerate(x, 1)], weights)
    b = play(name, [cohort_of(y[rest], ids_of(rest), counts()[rest], t) for t, y in enumerate(x, 1)], weights[rest])
    np.testing.assert_allclose(a.update, b.update, atol=1e-9)
    if a.weights is not None:
        assert a.weights[4] == 0
        np.testing.assert_allclose(a.weights[rest], b.weights, atol=1e-9)


def test_weights_are_shares_and_make_the_update(name, cohort_of):
    for policy in (np.ones(N), np.linspace(0.0, 1.0, N)):
        result = play(name, [cohort_of(rows(t), counts=counts(), round=t) for t in (1, 2)], policy)
        if result.weights is None:
            return
        assert result.weights.shape == (N,)
        assert (result.weights >= 0).all()
        assert result.weights.sum() == pytest.approx(1.0)
        np.testing.assert_allclose(result.update, result.weights @ rows(2), atol=1e-9)


def test_the_rows_are_only_read(name, cohort_of):
    x = rows()
    play(name, [cohort_of(x, counts=counts())], np.linspace(0.0, 1.0, N))
    assert np.array_equal(x, rows())


def test_the_same_round_gives_the_same_bits(name, cohort_of):
    a, b = (play(name, [cohort_of(rows(t), counts=counts(), round=t) for t in (1, 2)], np.ones(N)) for _ in range(2))
    assert np.array_equal(a.update, b.update)


def test_a_warden_can_use_it_at_any_size(name, cohort_of):
    """Too few clients are a note and a kept model, never an exception."""
    for n in range(1, 6):
        outcome = fw.Warden(aggregator=name).step(cohort_of(rows()[:n]))
        assert np.isfinite(outcome.update.numpy()).all()
        assert outcome.weights.sum() > 0 or any("the model is kept" in note for note in outcome.record.notes)
