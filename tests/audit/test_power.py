"""The exact rank test against scipy, sets counted one by one, and closed forms; no conclusion without power."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, rankdata

from fedwarden.audit.power import every, least_p, rank_p, reach, runs_needed, says, smallest_auroc, some, wins
from fedwarden.audit.verdict import leakage, sees

SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=6).map(lambda v: np.array(v, dtype=float))


@given(SCORES, SCORES)
def test_p_is_the_share_of_sets_with_as_high_ranks(shifted, null):
    ranks = rankdata(np.r_[shifted, null])
    sums = [sum(chosen) for chosen in combinations(ranks, len(shifted))]
    assert rank_p(shifted, null) == pytest.approx(np.mean([x >= ranks[: len(shifted)].sum() for x in sums]))


@pytest.mark.parametrize(("s", "m"), [(10, 10), (7, 30), (30, 40)])
def test_p_without_ties_is_that_of_scipy(s, m):
    rng = np.random.default_rng(s)
    x, y = rng.normal(0.1, 1, s), rng.normal(0, 1, m)
    want = mannwhitneyu(x, y, alternative="greater", method="exact").pvalue
    assert rank_p(x, y) == pytest.approx(want, rel=1e-9 if s + m <= 60 else 0.02)  # then the normal approximation


@given(st.integers(1, 8), st.integers(1, 8))
def test_the_least_p_is_reached_by_full_separation_and_by_nothing_less(s, m):
    order = np.arange(float(s + m))
    assert rank_p(order[m:], order[:m]) == pytest.approx(least_p(s, m))
    order[[m - 1, m]] = order[[m, m - 1]]  # one pair the wrong way round
    assert rank_p(order[m:], order[:m]) == pytest.approx(2 * least_p(s, m))


@pytest.mark.parametrize("tests", [1, 2, 16, 100])
def test_the_runs_needed_are_the_fewest_that_reach_the_level(tests):
    n = runs_needed(0.05 / tests)
    assert math.comb(2 * n, n) >= tests / 0.05 > math.comb(2 * n - 2, n - 1)


@pytest.mark.parametrize(("s", "m"), [(3, 4), (1, 5), (6, 2)])
def test_wins_without_a_shift_are_those_of_all_orders_alike(s, m):
    counts = np.zeros(s * m + 1)
    for chosen in combinations(range(s + m), s):
        counts[sum(chosen) - s * (s - 1) // 2] += 1
    np.testing.assert_allclose(wins(s, m), counts / counts.sum())


@pytest.mark.parametrize(("s", "m", "k"), [(4, 5, 3), (2, 2, 1), (5, 3, 7)])
def test_wins_of_a_shift_have_the_mean_and_the_ends_of_lehmanns_alternative(s, m, k):
    found = wins(s, m, odds=k)
    assert found.sum() == pytest.approx(1)
    assert found @ np.arange(s * m + 1) == pytest.approx(
        s * m * k / (k + 1)
    )  # each pair: the largest of k + 1 is not the null
    assert found[-1] == pytest.approx(math.prod(k * i / (k * i + m) for i in range(1, s + 1)))
    assert found[0] == pytest.approx(math.prod(j / (k * s + j) for j in range(1, m + 1)))


def test_the_smallest_auroc_is_found_as_often_as_it_says():
    n, level = 6, 0.05
    odds = 1 / (1 / smallest_auroc(n, n, level) - 1)
    rng = np.random.default_rng(0)
    x, y = rng.random((2000, n)) ** (1 / odds), rng.random((2000, n))  # F(x) = x ** odds
    above = (x[:, :, None] > y[:, None]).sum(axis=(1, 2))
    found = (above >= 29).mean()  # of 36: the 5 % point for 6 against 6 of Mann and Whitney's table, U <= 7
    assert abs(found - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 2000)


@settings(max_examples=50)
@given(SCORES, SCORES, st.integers(1, 40))
def test_a_test_that_cannot_reach_its_level_cannot_tell_whatever_the_scores_are(shifted, null, tests):
    able = reach(len(shifted), len(null), tests)
    found = leakage(shifted, {"no change": null, "fresh swap": null}, np.random.default_rng(0))
    told = sees(found, alpha=able.level)
    assert found["no change"].p >= able.least_p * (1 - 1e-9)
    assert (able.auroc is None) == (able.least_p > able.level)
    if able.auroc is None:
        assert (told.shift, told.new) == ("cannot tell", "cannot tell")
    elif found["no change"].p > able.level:
        assert (told.shift, told.new) == ("does not show", "does not show")


def test_all_and_any_are_decided_only_by_what_decides():
    bits = {"shows": {True}, "does not show": {False}, "cannot tell": {True, False}}
    names = {frozenset(v): k for k, v in bits.items()}
    for a, b in product(bits, repeat=2):
        assert every([a, b]) == names[frozenset(x and y for x in bits[a] for y in bits[b])]
        assert some([a, b]) == names[frozenset(x or y for x in bits[a] for y in bits[b])]


def test_an_interval_at_odds_with_its_test_cannot_tell():
    assert says(0.04, 0.001, 0.05, low=0.4) == "cannot tell"
    assert says(0.06, 0.001, 0.05, low=0.4) == "does not show"


def test_what_has_no_runs_or_no_level_is_refused():
    with pytest.raises(ValueError, match="runs of both kinds; got 0 and 3"):
        least_p(0, 3)
    with pytest.raises(ValueError, match=r"level lies in \(0, 1\); got 0"):
        runs_needed(0)
