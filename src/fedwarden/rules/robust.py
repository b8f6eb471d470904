"""Thresholds above the median that a minority cannot move: by a number of MADs, or by a constant."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..core.registry import register
from ..core.stats import Scores, mad
from ..core.types import Verdict


def robust_threshold(scores: Scores, limit: float) -> float:
    """Median plus ``limit`` median absolute deviations.

        tau = median(u) + limit * MAD(u)

    arXiv 2605.22266, the robust z-score as a threshold.

    >>> robust_threshold(np.array([1.0, 2.0, 3.0, 4.0, 100.0]), limit=6.0)
    9.0
    """
    return float(np.median(scores) + limit * mad(scores))


@register("rule", "robust_z")
@dataclass(frozen=True)
class RobustZ:
    """Flag scores more than ``limit`` median absolute deviations above the median."""

    limit: float = 6.0

    def __post_init__(self) -> None:
        _check(self.limit)

    def __call__(self, scores: Scores, test: int) -> Verdict:
        threshold = robust_threshold(scores, self.limit) if len(scores) else math.inf
        return Verdict(scores > threshold, threshold)


@register("rule", "offset", exempt={"scaling": "the limit is in the unit of the score"})
@dataclass(frozen=True)
class Offset:
    """Flag scores more than ``limit`` above the median, in the score's own unit: less than half can ever lie there."""

    limit: float = 2.0

    def __post_init__(self) -> None:
        _check(self.limit)

    def __call__(self, scores: Scores, test: int) -> Verdict:
        threshold = float(np.median(scores) + self.limit) if len(scores) else math.inf
        return Verdict(scores > threshold, threshold)


def _check(limit: float) -> None:
    if not limit > 0:
        raise ValueError(f"limit must be positive; got {limit}")
