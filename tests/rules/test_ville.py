"""A level of evidence that nobody else's scores move."""

import math

import numpy as np
import pytest

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.rules.ville import Ville


@pytest.mark.parametrize("alpha", [0.5, 0.05, 0.001])
def test_a_capital_beyond_one_over_alpha_is_flagged(alpha):
    scores = np.log(np.array([0.5, 0.99 / alpha, 1.01 / alpha, 100 / alpha]))
    verdict = Ville(alpha)(scores, 7)
    assert verdict.flagged.tolist() == [False, False, True, True]
    assert math.exp(verdict.threshold) == pytest.approx(1 / alpha)


def test_all_may_be_flagged_at_once():
    assert Ville()(np.full(5, 9.0), 1).flagged.all()


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1])
def test_a_level_lies_between_0_and_1(alpha):
    with pytest.raises(ConfigError, match="alpha lies in"):
        make("rule", "ville", alpha=alpha)
