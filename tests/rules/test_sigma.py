"""Mean plus k sigma, and the limit that no score vector passes."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedwarden.rules.sigma import (
    Cantelli,
    Gaussian,
    KSigma,
    cantelli_k,
    gaussian_k,
    masking_limit,
    masking_warning,
    sigma_threshold,
)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.floats(0.1, 6))
def test_the_threshold_is_mean_plus_k_population_deviations(scores, k):
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((s - mean) ** 2 for s in scores) / len(scores))
    assert sigma_threshold(np.array(scores), k) == pytest.approx(mean + k * deviation, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("alpha", [1e-12, 1e-4, 0.01, 0.05, 0.3, 0.499])
def test_gaussian_k_is_the_normal_quantile(alpha):
    assert gaussian_k(alpha) == pytest.approx(stats.norm.isf(alpha), rel=1e-12)


@pytest.mark.parametrize("alpha", [1e-6, 0.01, 0.1, 0.5, 0.9])
def test_cantellis_k_is_attained_by_two_points_and_never_passed(alpha):
    two = stats.rv_discrete(values=([0, 1], [1 - alpha, alpha]))
    assert (1 - two.mean()) / two.std() == pytest.approx(cantelli_k(alpha), rel=1e-6)
    for law in (stats.norm(), stats.expon(), stats.lognorm(1.0), stats.pareto(3.0), stats.uniform(), stats.t(3)):
        assert law.sf(law.mean() + cantelli_k(alpha) * law.std()) <= alpha


def above(scores, k):
    """How many of some whole numbers exceed mean + k sigma, in exact arithmetic."""
    n, total, squares = len(scores), sum(scores), sum(s * s for s in scores)
    spread = Fraction(k) ** 2 * (n * squares - total**2)
    return sum(n * s > total and (n * s - total) ** 2 > spread for s in scores)


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=40), st.floats(0.05, 6))
def test_no_scores_pass_the_masking_limit(scores, k):
    assert above(scores, k) <= masking_limit(len(scores), k)


@given(st.integers(1, 200), st.floats(0.5, 6))
def test_the_masking_limit_is_tight(n, k):
    limit = masking_limit(n, k)
    for f, seen in ((limit, limit), (limit + 1, 0)):
        scores = [1] * f + [0] * (n - f)
        assert above(scores, k) == seen


def test_the_limit_in_the_design():
    assert pytest.approx(0.156, abs=5e-4) == 1 / (1 + 2.33**2)
    assert masking_limit(20, 2.33) == 3  # of 20 clients, 4 equal outliers are a fifth


@pytest.mark.parametrize(
    ("rule", "k"), [(KSigma(1.5), 1.5), (Gaussian(0.05), stats.norm.isf(0.05)), (Cantelli(0.2), 2.0)]
)
def test_the_rules_use_their_k(rule, k):
    scores = np.random.default_rng(0).gamma(2.0, size=30)
    verdict = rule(scores, 1)
    assert verdict.threshold == pytest.approx(scores.mean() + k * scores.std())
    assert verdict.flagged.tolist() == (scores > verdict.threshold).tolist()
    assert rule(scores, 1).threshold == rule(scores, 9).threshold  # no level to spend


def test_the_warning_says_what_cannot_be_seen():
    scores = np.array([1.0] * 16 + [100.0] * 4) + np.linspace(0, 0.1, 20)
    verdict = KSigma(2.33)(scores, 1)
    assert not verdict.flagged.any()
    for part in ("at most 3 of 20", "4 or more equal outliers", "15.6 %", "4 clients lie more than 6 MADs", "'gesd'"):
        assert part in str(verdict.warning)
    quiet = KSigma(2.33)(np.linspace(0, 1, 20), 1)
    assert "lie more than" not in str(quiet.warning)
    assert masking_warning(np.linspace(0, 1, 20), 0.5) is None  # sees any minority
    assert masking_warning(np.zeros(0), 2.33) is None
