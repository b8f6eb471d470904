"""Mean plus k standard deviations: the thresholds of PID-MADE, and the limit they share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from ..core.notes import Note
from ..core.registry import register
from ..core.stats import Scores, robust_z
from ..core.types import Verdict

APART = 6.0  # median absolute deviations from which a client plainly stands apart, for the warning only


def sigma_threshold(scores: Scores, k: float) -> float:
    """Mean plus k population standard deviations.

        tau = mean(u) + k * sigma(u)

    PID-MADE, eq. 3.

    >>> sigma_threshold(np.array([1.0, 1.0, 3.0, 3.0]), k=2.0)
    4.0
    """
    if scores.min() == scores.max():  # the mean of equal numbers may be rounded below them
        return float(scores.max())
    return float(scores.mean() + k * scores.std())


def gaussian_k(alpha: float) -> float:
    """The k that one value of a Gaussian exceeds with probability alpha: Phi^-1(1 - alpha).

    >>> round(gaussian_k(0.01), 3)
    2.326
    """
    return -float(ndtri(alpha))


def cantelli_k(alpha: float) -> float:
    """The k that one value of any distribution exceeds with probability alpha at most: sqrt(1/alpha - 1).

    Cantelli's inequality (one-sided Chebyshev).

    >>> cantelli_k(0.1)
    3.0
    """
    return math.sqrt(1 / alpha - 1)


def masking_limit(n: int, k: float) -> int:
    """How many of n values can exceed mean + k sigma at once, whatever their strength.

        #{u_i > mean + k sigma} < n / (1 + k^2)

    From Cantelli's inequality on the empirical distribution; equality needs sigma = 0.

    >>> masking_limit(40, 2.33), masking_limit(8, 2.33), masking_limit(5, 2.33)
    (6, 1, 0)
    """
    return max(math.ceil(n / (1 + k * k)) - 1, 0)


def masking_warning(scores: Scores, k: float) -> Note | None:
    """What mean + k sigma cannot see among so many clients; None where it can see any minority."""
    n, most = len(scores), masking_limit(len(scores), k)
    if n == 0 or most >= (n - 1) // 2:
        return None
    limits = {"k": k, "most": most, "n": n, "hidden": most + 1, "percent": 100 / (1 + k * k)}
    apart = int((robust_z(scores) > APART).sum())
    if apart > most:
        return Note("masking_now", values={**limits, "apart": apart, "mads": APART})
    return Note("masking", values=limits)


def judge_sigma(scores: Scores, k: float) -> Verdict:
    """Flag what exceeds mean + k sigma, with the masking limit as a warning."""
    if len(scores) == 0:
        return Verdict(np.zeros(0, bool), math.inf)
    threshold = sigma_threshold(scores, k)
    return Verdict(scores > threshold, threshold, masking_warning(scores, k))


@register("rule", "k_sigma")
@dataclass(frozen=True)
class KSigma:
    """Flag scores above mean + k standard deviations, k given (PID-MADE: 2.33)."""

    k: float = 2.33

    def __post_init__(self) -> None:
        if not self.k > 0:
            raise ValueError(f"k must be positive; got {self.k}")

    def __call__(self, scores: Scores, test: int) -> Verdict:
        return judge_sigma(scores, self.k)


@register("rule", "gaussian")
@dataclass(frozen=True)
class Gaussian:
    """Flag scores above mean + k standard deviations, k from a Gaussian tail of probability alpha."""

    alpha: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:
            raise ValueError(f"alpha lies in (0, 0.5); got {self.alpha}")

    def __call__(self, scores: Scores, test: int) -> Verdict:
        return judge_sigma(scores, gaussian_k(self.alpha))


@register("rule", "cantelli")
@dataclass(frozen=True)
class Cantelli:
    """Flag scores above mean + k standard deviations, k from Cantelli's inequality at alpha."""

    alpha: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha lies in (0, 1); got {self.alpha}")

    def __call__(self, scores: Scores, test: int) -> Verdict:
        return judge_sigma(scores, cantelli_k(self.alpha))
