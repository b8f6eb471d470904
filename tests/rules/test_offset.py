"""A fixed distance above the median."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.rules.offset import Offset, offset_threshold


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.floats(0.01, 10))
def test_the_median_plus_a_constant_flags_no_more_than_half(scores, limit):
    x = np.array(scores)
    assert offset_threshold(x, limit) == pytest.approx(np.median(x) + limit)
    assert 2 * Offset(limit)(x, 1).flagged.sum() <= len(x)


def test_nobody_to_judge_and_options():
    assert Offset()(np.zeros(0), 1).threshold == math.inf
    with pytest.raises(ConfigError, match="limit must be positive; got 0"):
        make("rule", "offset", limit=0)
