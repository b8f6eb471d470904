"""Median plus a number of MADs, or a constant."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.core.stats import robust_z
from fedwarden.rules.robust import Offset, RobustZ, robust_threshold


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.floats(0.1, 10))
def test_the_threshold_is_scipys(scores, limit):
    want = np.median(scores) + limit * median_abs_deviation(scores)
    assert robust_threshold(np.array(scores), limit) == pytest.approx(want, rel=1e-9, abs=1e-9)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30))
def test_flagged_is_a_robust_z_above_the_limit(scores):
    z = robust_z(scores)
    if not np.isclose(z, 6.0).any():
        assert RobustZ(6.0)(np.array(scores, dtype=float), 1).flagged.tolist() == (z > 6.0).tolist()


def test_just_under_half_of_the_clients_cannot_hide():
    scores = np.concatenate([np.linspace(1, 2, 11), np.full(10, 1e9)])
    assert RobustZ()(scores, 1).flagged.tolist() == [False] * 11 + [True] * 10


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.floats(0.01, 10))
def test_the_median_plus_a_constant_flags_no_more_than_half(scores, limit):
    x = np.array(scores)
    verdict = Offset(limit)(x, 1)
    assert verdict.threshold == pytest.approx(np.median(x) + limit)
    assert 2 * verdict.flagged.sum() <= len(x)


@pytest.mark.parametrize("rule", ["robust_z", "offset"])
def test_nobody_to_judge_and_options(rule):
    assert make("rule", rule)(np.zeros(0), 1).threshold == math.inf
    with pytest.raises(ConfigError, match="limit must be positive; got -1"):
        make("rule", rule, limit=-1)
