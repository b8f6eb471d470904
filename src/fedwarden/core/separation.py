"""How well a score tells two groups apart, in NumPy alone: libraries that know it take seconds to import."""

from __future__ import annotations

import numpy as np

from .stats import Scores


def auroc(high: Scores, null: Scores) -> float:
    """The probability that one of the first scores lies above one of the null, ties counting half.

        A = mean over i of (#{j: n_j < h_i} + #{j: n_j <= h_i}) / 2 m

    Mann and Whitney (1947); 0.5 = cannot tell, 1 = always.

    >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    ordered = np.sort(null)
    below = np.searchsorted(ordered, high, "left") + np.searchsorted(ordered, high, "right")
    return float(below.mean() / (2 * len(null)))


def threshold(null: Scores, rate: float = 0.05) -> float:
    """The smallest score of the null that at most a share ``rate`` of the null exceeds.

    >>> threshold(np.arange(1.0, 21.0), 0.05), threshold(np.arange(1.0, 11.0), 0.05)
    (19.0, 10.0)
    """
    if not 0 <= rate < 1:
        raise ValueError(f"a rate of false alarms lies in [0, 1); got {rate}")
    return float(np.sort(null)[len(null) - 1 - int(rate * len(null) + 1e-9)])


def tpr_at(shifted: Scores, null: Scores, rate: float = 0.05) -> float:
    """The share of shifted runs above the threshold that at most ``rate`` of the null exceeds.

    >>> tpr_at(np.array([19.5, 18.0]), np.arange(1.0, 21.0))
    0.5
    """
    return float((shifted > threshold(null, rate)).mean())
