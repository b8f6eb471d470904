"""The laws of rules again, on inputs that hypothesis looks for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedwarden as fw
from fedwarden.core.registry import exemptions, make

pytestmark = pytest.mark.parametrize("name", fw.names("rule"))
whole = st.lists(st.integers(0, 1000), max_size=30).map(lambda values: np.array(values, dtype=float))
test_numbers = st.integers(1, 50)


def kept_by(name, law):
    """The rule, unless it declares not to keep this law."""
    if law in (declared := exemptions("rule", name)):
        pytest.skip(declared[law])
    return make("rule", name)


@given(scores=st.lists(st.floats(0, 1e9), max_size=30), test=test_numbers)
def test_flagged_is_above_the_threshold(name, scores, test):
    x = np.array(scores, dtype=float)
    verdict = make("rule", name)(x, test)
    assert verdict.flagged.tolist() == (x > verdict.threshold).tolist()
    assert not math.isnan(verdict.threshold)


@given(value=st.just(0.0) | st.floats(1e-9, 1e9), n=st.integers(0, 40), test=test_numbers)
def test_nobody_is_flagged_among_equal_scores(name, value, n, test):
    assert not kept_by(name, "equal-scores")(np.full(n, value), test).flagged.any()


@given(scores=whole, shift=st.integers(-100, 100), test=test_numbers)
def test_the_threshold_moves_with_the_scores(name, scores, shift, test):
    rule = kept_by(name, "translation")
    want = rule(scores, test).threshold + shift
    assert rule(scores + shift, test).threshold == pytest.approx(want, rel=1e-9, abs=1e-6)


@given(scores=whole, scale=st.sampled_from([0.25, 2.0, 1024.0]), test=test_numbers)
def test_the_threshold_scales_with_the_scores(name, scores, scale, test):
    rule = kept_by(name, "scaling")
    want = scale * rule(scores, test).threshold
    assert rule(scale * scores, test).threshold == pytest.approx(want, rel=1e-9, abs=1e-6)


@given(scores=whole, seed=st.integers(0, 1000), test=test_numbers)
def test_a_permutation_of_the_scores_permutes_the_flags(name, scores, seed, test):
    rule, order = make("rule", name), np.random.default_rng(seed).permutation(len(scores))
    a, b = rule(scores, test), rule(scores[order], test)
    assert b.threshold == pytest.approx(a.threshold, rel=1e-9)
    plain = ~np.isclose(scores, a.threshold)  # on the threshold itself, rounding decides
    assert b.flagged[plain[order]].tolist() == a.flagged[order][plain[order]].tolist()
