"""FLANDERS: what the past foretells, and who departs from it."""

import numpy as np
import pytest
import torch

from fedwarden.aggregators.flanders import Flanders, autoregression, foretell, unforeseen

N, D = 8, 40


def drifting(seed=0):
    """A cohort whose models grow by a tenth a round, and client a on a path of its own: it drifts twice as fast."""
    rng = np.random.default_rng(seed)
    base, own = rng.normal(size=D), rng.normal(size=(N, D))

    def models(t):
        x = base * 1.1**t + 0.3 * own + 0.02 * rng.normal(size=(N, D))
        x[0] = base * 1.2**t + 0.3 * own[0]
        return x

    return models


def play(rule, rounds, rows, cohort_of, state=None, first=1, counts=None):
    state, results = rule.init() if state is None else state, []
    for t in range(first, rounds + 1):
        state, result = rule.step(state, cohort_of(rows(t), counts=counts, round=t), np.ones(N))
        results.append(result.weights)
    return state, np.array(results)


def test_a_client_that_jumps_is_found_and_one_that_drifts_is_kept(cohort_of):
    models = drifting()

    def rows(t):
        x = models(t)
        if t == 7:
            x[3] += 3.0
        return x

    _, weights = play(Flanders(), 9, rows, cohort_of)
    assert np.argwhere(weights == 0).tolist() == [[6, 3]]  # in round 7, client d, and never anybody else
    np.testing.assert_allclose(weights[6], np.where(np.arange(N) == 3, 0.0, 1 / 7))


def test_one_that_goes_on_jumping_stays_out_as_its_lies_are_not_remembered(cohort_of):
    models = drifting()

    def rows(t):
        x = models(t)
        if t >= 6:
            x[3] += 3.0 * (t - 5)
        return x

    state, weights = play(Flanders(), 9, rows, cohort_of)
    assert (weights[5:, 3] == 0).all()
    assert (weights[:5] > 0).all()
    assert np.abs(state["d"][-1].numpy() - models(9)[3]).max() < 2.0  # as foretold, 12 away from what it sent


def test_the_first_two_rounds_of_a_client_are_not_judged(cohort_of):
    models = drifting()

    def rows(t):
        x = models(t)
        x[3] += 50.0 * (t in (1, 2))
        return x

    _, weights = play(Flanders(), 2, rows, cohort_of)
    assert (weights > 0).all()


def test_memory_is_by_client_and_no_longer_than_the_window(cohort_of):
    models, rule = drifting(), Flanders(window=3, sample=7)
    state = rule.init()
    for t, here in enumerate(([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [0, 2, 4, 6], [1, 6], [0, 1, 2, 3, 4, 5, 6, 7]), 1):
        x = models(t)[here]
        state, result = rule.step(state, cohort_of(x, [f"c{i}" for i in here], round=t), np.ones(len(here)))
        assert result.weights.sum() == pytest.approx(1.0)
        np.testing.assert_allclose(result.update, result.weights @ x, atol=1e-9)
    assert {c: len(past) for c, past in sorted(state.items())} == {
        "c0": 3, "c1": 3, "c2": 3, "c3": 3, "c4": 3, "c5": 1, "c6": 3, "c7": 1,
    }  # fmt: skip
    assert {past.shape[1] for past in state.values()} == {7}


def test_who_was_left_out_by_the_policy_is_not_remembered(cohort_of):
    state, result = Flanders().step({}, cohort_of(drifting()(1)), np.where(np.arange(N) == 2, 0.0, 1.0))
    assert result.weights[2] == 0
    assert "c" not in state


@pytest.mark.parametrize("weighted", [True, False])
def test_counts_weigh_those_that_are_kept(weighted, cohort_of):
    models, counts = drifting(), np.arange(1.0, N + 1)

    def rows(t):
        x = models(t)
        x[3] += 3.0 * (t == 5)
        return x

    _, weights = play(Flanders(weighted=weighted), 5, rows, cohort_of, counts=counts)
    want = np.where(np.arange(N) == 3, 0.0, counts if weighted else 1.0)
    np.testing.assert_allclose(weights[4], want / want.sum())


def test_the_sample_is_of_models_and_of_measured_columns_alone(cohort_of):
    """Rows are changes; what is watched is the model that they make of the parameters."""
    x, params = np.random.default_rng(0).normal(size=(3, 6)), torch.arange(6.0)
    updates = cohort_of(x).updates.of(x, measured=[(0, 2), (3, 6)])
    state, _ = Flanders().step({}, cohort_of(updates, params=params), np.ones(3))
    np.testing.assert_allclose(state["b"][0], (x[1] + params.numpy())[[0, 1, 3, 4, 5]])
    few = [Flanders(sample=3, seed=s).step({}, cohort_of(updates), np.ones(3))[0]["a"] for s in (0, 0, 1, 2, 3)]
    assert torch.equal(few[0], few[1])
    assert any(not torch.equal(few[0], other) for other in few[2:])
    assert all(set(f[0].tolist()) <= set(x[0, [0, 1, 3, 4, 5]]) for f in few)


def test_never_half_of_the_clients_are_unforeseen():
    rng = np.random.default_rng(0)
    for far in range(8):
        present = rng.normal(size=(5, 8)) * np.where(np.arange(8) < far, 1e6, 1.0)
        assert unforeseen(np.zeros((5, 8)), present, 3.0).sum() < 4


def test_the_limit_is_in_deviations_of_logarithms():
    """Logs of surprise -2, ..., 2 and x: the median of six lies at 0.5, the median deviation is 1.5."""
    eps, deviation = 0.1, 1.4826
    for limit in (1.0, 3.0):
        edge = 0.5 + limit * deviation * (1.5 + eps)
        for above in (-0.01, 0.01):
            logs = np.array([-2.0, -1.0, 0.0, 1.0, 2.0, edge + above])
            assert unforeseen(np.zeros((1, 6)), np.exp(logs / 2)[None], limit)[5] == (above > 0)


def test_a_heavy_penalty_foretells_that_nothing_changes_and_a_light_one_the_trend():
    rng = np.random.default_rng(3)
    a, b = (np.eye(k) + 0.1 * rng.normal(size=(k, k)) for k in (4, 3))
    series = [rng.normal(size=(4, 3))]
    for _ in range(12):
        series.append(a @ series[-1] @ b)
    still, moving = foretell(series[:-1], 1e6, 5), foretell(series[:-1], 1e-10, 300)
    np.testing.assert_allclose(still, series[-2], atol=1e-3 * np.abs(series[-2]).max())
    np.testing.assert_allclose(moving, series[-1], atol=1e-3 * np.abs(series[-1]).max())
    found = autoregression(series, 1e-10, 300)
    np.testing.assert_allclose(np.kron(*found), np.kron(a, b), atol=0.05)
