"""Departure of a value from the trend of those before it, and a test of it with a stated false-alarm rate."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from ..core.stats import Scores

FLOOR = 1e-9  # smallest deviation, relative to the largest past value: below it is rounding, not noise


class Forecast(NamedTuple):
    """What the past says of the next value: the expected one and the deviation about the fit.

    A new value lies about the expected one with ``widening`` times that deviation, known to ``freedom`` degrees.
    """

    expected: float
    deviation: float
    widening: float
    freedom: int


class Departure(NamedTuple):
    """How far a value lies from the expected one: absolute, relative to it, in deviations, and its p-value."""

    expected: float
    divergence: float
    relative: float
    score: float
    p: float


def forecast(past: Scores) -> Forecast:
    """Least squares through the past values, extrapolated by one step.

        y_i = a + b i,  i = 0 .. m - 1;      expected = a + b m
        deviation s = sqrt(RSS / (m - 2));   widening = sqrt(1 + 1/m + (m - mean i)^2 / sum_i (i - mean i)^2)

    A single value is a constant, b = 0. Of up to two values the deviation is unknown, NaN, and of none the expectation.

    >>> forecast(np.array([1.0, 2.0, 3.0, 4.0])).expected
    5.0
    """
    m = len(past)
    if m == 0:
        return Forecast(math.nan, math.nan, math.nan, 0)
    steps = np.arange(m) - (m - 1) / 2
    ahead = (m + 1) / 2
    squares = float(steps @ steps)
    mean = float(past[0] + np.mean(past - past[0]))
    slope = float(steps @ (past - mean)) / squares if m > 1 else 0.0
    widening = math.sqrt(1 + 1 / m + (ahead**2 / squares if m > 1 else 0.0))
    freedom = max(m - 2, 0)
    residual = past - mean - slope * steps
    deviation = math.sqrt(float(residual @ residual) / freedom) if freedom else math.nan
    return Forecast(mean + slope * ahead, deviation, widening, freedom)


def departure(value: float, past: Scores, floor: float = 0.0) -> Departure:
    """Distance of a value from the trend of the past ones, and the probability of one at least as large by chance.

        divergence = value - expected;   relative = divergence / |expected|;   score = divergence / s
        p = 2 P(T_freedom > |score| / widening),   exact for a linear trend with independent Gaussian noise

    Brunner and Montuoro, arXiv 2409.13875 (divergence). Deviations are at least 1e-9 of the largest past value, so
    that a straight line does not make rounding errors significant, and at least ``floor``: of a count, such as an
    accuracy, give it the smallest step. Without a degree of freedom score and p are NaN.

    >>> d = departure(6.0, np.array([1.0, 1.0, 3.0, 3.0]))
    >>> round(d.expected, 6), round(d.divergence, 6), round(d.score, 4), round(d.p, 4)
    (4.0, 2.0, 3.1623, 0.1835)
    """
    fit = forecast(past)
    divergence = value - fit.expected
    relative = divergence / abs(fit.expected) if fit.expected else math.nan
    if not fit.freedom or not math.isfinite(divergence):
        return Departure(fit.expected, divergence, relative, math.nan, math.nan)
    deviation = max(fit.deviation, FLOOR * float(np.abs(past).max()), floor)
    if deviation == 0.0:  # nothing but zeros so far
        score = math.copysign(math.inf, divergence) if divergence else 0.0
        return Departure(fit.expected, divergence, relative, score, float(divergence == 0.0))
    score = divergence / deviation
    return Departure(
        fit.expected, divergence, relative, score, 2 * float(stdtr(fit.freedom, -abs(score) / fit.widening))
    )
