"""Clipping with limits of one's own, and about a centre that moves over the rounds."""

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.aggregators.clipping import CenteredClipping, NormClipping


def rows(t=0, n=7, d=5):
    return np.random.default_rng(t).normal(1.0, 2.0, size=(n, d))


def centred(x, centre, limit, steps):
    """Karimireddy et al. (2021), algorithm 2, in d dimensions; without a limit, the median distance of every step."""
    v = centre
    for _ in range(steps):
        radius = np.median([np.linalg.norm(row - v) for row in x]) if limit is None else limit
        v = v + sum((row - v) * min(1.0, radius / max(np.linalg.norm(row - v), 1e-9)) for row in x) / len(x)
    return v


@pytest.mark.parametrize("limit", [None, 0.5, 3.0, 1e6])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_centre_is_that_of_a_loop_over_rounds_with_clients_coming_and_going(limit, steps, cohort_of):
    rule = CenteredClipping(limit, steps)
    state, centre = rule.init(), np.zeros(5)
    for t, n in enumerate((7, 4, 6, 9, 1), 1):
        x = rows(t, n)
        state, result = rule.step(state, cohort_of(x, counts=np.arange(1, n + 1), round=t), np.ones(n))
        centre = centred(x, centre, limit, steps)
        np.testing.assert_allclose(result.update, centre, atol=1e-9)
        np.testing.assert_array_equal(state["centre"], result.update)
    assert result.weights is None


@pytest.mark.parametrize("options", [{"limit": -1.0}, {"limit": float("nan")}, {"steps": 0}])
def test_options_of_the_centre_that_are_none(options):
    with pytest.raises(ValueError, match="centered clipping needs a limit of at least 0 and a step or more; got"):
        fw.aggregate("centered_clipping", rows(), **options)


def test_a_centre_of_another_precision_is_taken_on(cohort_of):
    x = rows()
    state = {"centre": torch.full((5,), 0.5, dtype=torch.float32)}
    result = CenteredClipping(2.0, 2).step(state, cohort_of(x), np.ones(7))[1]
    np.testing.assert_allclose(result.update, centred(x, np.full(5, 0.5), 2.0, 2), atol=1e-9)
    assert result.update.dtype == torch.float64


def test_what_is_returned_is_not_what_is_remembered(cohort_of):
    """The server may add to the update in place."""
    state, result = CenteredClipping().step({}, cohort_of(rows()), np.ones(7))
    before = state["centre"].clone()
    result.update.add_(99.0)
    assert torch.equal(state["centre"], before)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("limit", [0.0, 1.5, 1e9, None])
def test_every_update_is_cut_to_the_limit(limit, weighted, cohort_of):
    x, counts, weights = rows(), np.arange(1.0, 8.0), np.array([1.0, 0.5, 0.0, 1.0, 1.0, 1.0, 1.0])
    x[4] = 0.0
    lengths = np.linalg.norm(x, axis=1)
    cut = np.median(lengths[weights > 0]) if limit is None else limit
    shares = weights * (counts if weighted else 1.0)
    want = sum(
        s / shares.sum() * (row if length <= cut else row * cut / length)
        for s, row, length in zip(shares, x, lengths, strict=True)
    )
    result = NormClipping(limit, weighted).step({}, cohort_of(x, counts=counts), weights)[1]
    np.testing.assert_allclose(result.update, want, atol=1e-12)
    assert result.weights is None


@pytest.mark.parametrize("limit", [-1.0, float("nan")])
def test_a_limit_that_is_none(limit):
    with pytest.raises(ValueError, match=f"norm clipping needs a limit of at least 0; got {limit}"):
        fw.aggregate("norm_clipping", rows(), limit=limit)
