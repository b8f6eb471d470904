"""Generalized extreme studentized deviates: finds any number of outliers below half without being told it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from ..core.registry import register
from ..core.stats import Mask, Scores, spent_level
from ..core.types import Verdict


def critical_value(n: int, i: int, alpha: float) -> float:
    """What the i-th largest of n Gaussian values exceeds, in deviations above the mean, with probability alpha.

        lambda_i = (n - i) t / sqrt((n - i - 1 + t^2)(n - i + 1)),   t = t_{1 - alpha/(n - i + 1), n - i - 1}

    Rosner, Percentage Points for a Generalized ESD Many-Outlier Procedure, Technometrics 25 (1983), eq. 2.5.
    Differs from the paper: one-sided, so the published two-sided tables at alpha are these at alpha / 2.

    >>> round(critical_value(54, 1, 0.05 / 2), 3), round(critical_value(54, 10, 0.05 / 2), 3)
    (3.159, 3.085)
    """
    quantile = -float(stdtrit(n - i - 1, alpha / (n - i + 1)))
    return (n - i) * quantile / math.sqrt((n - i - 1 + quantile**2) * (n - i + 1))


def gesd_threshold(scores: Scores, alpha: float) -> float:
    """The threshold of a one-sided generalized ESD test for up to floor((n - 1) / 2) outliers.

        R_i = (max - mean) / s of what is left after taking out the i - 1 largest;  r = max { i : R_i > lambda_i }

    The r largest are outliers. The threshold is the mean plus lambda_{r+1} deviations of the rest: it lies between
    the smallest outlier and the largest of the rest. Rosner (1983), section 2.

    >>> round(gesd_threshold(np.array([1.0, 1.1, 0.9, 1.2, 0.8, 9.0, 9.1]), 0.05), 2)
    1.26
    """
    n, most = len(scores), (len(scores) - 1) // 2
    if most < 1:
        return math.inf
    ordered = np.sort(scores)
    found, cuts = 0, []
    for i in range(1, most + 2):
        rest = ordered[: n - i + 1]
        if len(rest) < 3:
            break
        cuts.append(float(rest.mean() + critical_value(n, i, alpha) * rest.std(ddof=1)))
        if i <= most and rest[-1] > cuts[-1]:
            found = i
    if found < len(cuts):
        return max(cuts[found], float(ordered[n - found - 1]))
    return float(ordered[n - found - 1])


def gesd(scores: ArrayLike, alpha: float = 0.05) -> Mask:
    """True for the scores that a one-sided generalized ESD test at level alpha finds too large.

    >>> gesd([1.0, 1.1, 0.9, 1.2, 0.8, 9.0, 9.1], 0.05).tolist()
    [False, False, False, False, False, True, True]
    """
    values = np.asarray(scores, dtype=np.float64)
    return values > gesd_threshold(values, alpha)


@register("rule", "gesd")
@dataclass(frozen=True)
class GESD:
    """Flag what a generalized ESD test finds, its level spent over the rounds so that alpha holds for the run."""

    alpha: float = 0.05
    spend: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha lies in (0, 1); got {self.alpha}")

    def __call__(self, scores: Scores, test: int) -> Verdict:
        threshold = gesd_threshold(scores, spent_level(self.alpha, test) if self.spend else self.alpha)
        return Verdict(scores > threshold, threshold)
