"""Sides of a cohort: whoever sends the opposite stands on the other one, and nobody is pushed there by others."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedwarden as fw
from fedwarden.core.registry import make
from fedwarden.signals.opposition import FADING, ORTHOGONAL, informative, sides

OPPOSITE, AGREES = 1 - ORTHOGONAL, -1 - ORTHOGONAL  # of a cohort that splits in two


def scores(rows, trusted=None):
    n = len(rows)
    ids = tuple(str(i) for i in range(n))
    cohort = fw.Cohort(1, ids, fw.Updates.of(rows.astype(np.float32)), np.ones(n))
    return make("signal", "opposition")(cohort if trusted is None else replace(cohort, trusted=trusted)).values


def agreeing(n, d, cosine, rng):
    """Updates with that cosine between any two, but for noise."""
    common = np.sqrt(cosine) * rng.normal(size=d)
    return common + np.sqrt(1 - cosine) * rng.normal(size=(n, d))


@pytest.mark.parametrize("n", [8, 10, 20, 100, 300, 1000])  # above 256 by sketches, whose cosines are off by .011
@pytest.mark.parametrize("cosine", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("share", [0.1, 0.4])
def test_who_sends_the_opposite_is_seen_however_small_the_agreement(n, cosine, share):
    f = int(share * n)
    rows = agreeing(n, 20_000, cosine, np.random.default_rng(n))
    rows[:f] *= -1
    found = scores(rows)
    if not informative(1.0, n):
        assert (found == -FADING).all()
        return
    assert (found[:f] > OPPOSITE - 0.4).all()
    assert np.abs(found[f:] - AGREES).max() < 0.4


@given(st.integers(8, 30), st.data())
def test_signs_alone_decide(n, data):
    """The matrix of signs of an exact split has the eigenvalue n - 1 and the split as its eigenvector."""
    f = data.draw(st.integers(0, (n - 1) // 2))
    s = np.array([-1.0] * f + [1.0] * (n - f))
    side, agreement = sides(0.01 * np.outer(s, s), np.ones(n, bool))
    np.testing.assert_allclose(side, s, atol=1e-9)
    assert agreement == pytest.approx(1.0)


def test_clients_that_agree_on_nothing_have_no_sides():
    for n in (8, 20, 60, 300):
        rows = np.random.default_rng(n).normal(size=(n, 20_000))
        assert (scores(rows) == -FADING).all()


def test_few_clients_are_not_measured():
    rows = agreeing(5, 5000, 0.5, np.random.default_rng(0))
    rows[0] *= -1
    assert (scores(rows) == -FADING).all()
    assert (scores(rows[:2]) == -FADING).all()


@pytest.mark.parametrize(("n", "f"), [(10, 4), (20, 8), (21, 10), (40, 16)])
def test_a_minority_that_opposes_one_client_does_not_put_it_on_the_other_side(n, f):
    """They agree with all but their victim: it keeps the honest majority on its side, and stays below the limit."""
    rows = agreeing(n, 20_000, 0.3, np.random.default_rng(n))
    honest = rows[f:]
    rows[:f] = 3 * honest.mean(axis=0) - 6 * honest[0] * (honest.mean(axis=0) @ honest[0]) / (honest[0] @ honest[0])
    rows[:f] += 0.3 * np.random.default_rng(1).normal(size=(f, 20_000))
    cosines = np.corrcoef(rows)
    assert (cosines[:f, f] < 0).all()  # the attack is as meant
    assert scores(rows)[f] < -0.05, "it gathers no evidence"


def test_who_is_not_trusted_is_placed_and_places_nobody():
    rows = agreeing(20, 20_000, 0.3, np.random.default_rng(5))
    rows[:9] *= -1
    trusted = np.array([False] * 5 + [True] * 15)
    found = scores(rows, trusted)
    assert (found[:9] > OPPOSITE - 0.4).all()
    assert np.abs(found[9:] - AGREES).max() < 0.4
    kept, _ = sides(np.corrcoef(rows[5:]), np.ones(15, bool))
    everyone, _ = sides(np.corrcoef(rows), trusted)
    np.testing.assert_allclose(everyone[5:], kept, atol=1e-6)


@pytest.mark.parametrize("n", [20, 300])
def test_attackers_who_are_all_alike_weigh_no_more_than_others(n):
    """Four tenths with cosines of 1 among them, against a majority that agrees by 0.1; also by sketches."""
    rng, f = np.random.default_rng(8), 2 * n // 5
    rows = agreeing(n, 20_000, 0.1, rng)
    rows[:f] = -rows[f:].mean(axis=0) + 0.01 * rng.normal(size=(f, 20_000))
    found = scores(rows)
    assert (found[:f] > OPPOSITE - 0.4).all()
    assert found[f:].max() < AGREES + 0.5


@pytest.mark.parametrize(
    ("n", "agreement", "wanted"),
    [
        (20, 0.55, False),  # 2 sqrt(20) / 19 = 0.471 is less than 0.55
        (20, 0.5501, True),
        (10, 0.702, False),  # 2 sqrt(10) / 9 = 0.7027
        (10, 0.703, True),
        (6, 0.979, False),  # 2 sqrt(6) / 5 = 0.9798
        (6, 0.98, True),
        (5, 1.0, False),  # 2 sqrt(5) / 4 = 1.118: no five clients can agree so much
        (2, 1.0, False),
        (0, 1.0, False),
    ],
)
def test_the_edge_above_which_clients_agree_on_enough(n, agreement, wanted):
    assert informative(agreement, n) == wanted


@pytest.mark.parametrize("n", [8, 20, 60])
def test_random_signs_agree_on_too_little(n):
    """Of 200 symmetric matrices of random signs none gets over the edge, the semicircle's or 0.55."""
    rng = np.random.default_rng(n)
    for _ in range(200):
        upper = np.triu(rng.choice([-1.0, 1.0], (n, n)), 1)
        agreement = np.linalg.eigvalsh(upper + upper.T)[-1] / (n - 1)
        assert not informative(agreement, n) or n == 8


def test_a_client_at_right_angles_gathers_nothing_and_its_fact_is_free_of_chance():
    rows = agreeing(20, 20_000, 0.3, np.random.default_rng(4))
    ids = tuple(str(i) for i in range(20))
    found = make("signal", "opposition")(fw.Cohort(1, ids, fw.Updates.of(rows), np.ones(20)))
    _, agreement = sides(np.corrcoef(rows), np.ones(20, bool))
    assert found.facts["agreement"] == pytest.approx(agreement - 1 / 20, abs=1e-3)


def test_a_fast_client_may_point_away_as_far_as_at_rest():
    """Twelve clients: a fast one whose mean cosine with the others is -.05, and not below -1 / 11."""
    rng = np.random.default_rng(0)
    common, noise = rng.normal(size=4000), rng.normal(size=(12, 4000))
    agreement = np.array([-0.18, *[0.3] * 11])[:, None]  # -.18 * .3 = -.054
    x = agreement * common + np.sqrt(1 - agreement**2) * noise
    ages, context = np.array([5.0, *np.linspace(10, 60, 11)]), np.arange(12) > 0

    def measured(rows, ages, trusted=()):
        ids = tuple(map(str, range(12)))
        cohort = fw.Cohort(1, ids, fw.Updates.of(rows), np.ones(12), context=context, ages=ages, trusted=trusted)
        return make("signal", "opposition")(cohort).values[0]

    assert measured(x, ages) == -FADING
    assert measured(x, ()) > 0.2, "in a synchronous round"
    assert measured(x, 65 - ages) > 0.2, "a slow client"
    assert measured(x, ages, context) > 0.2, "one that is in doubt"
    x[0] -= 0.3 * common
    assert measured(x, ages) > 0.2, "one that points away farther"
