"""Median and MAD: a threshold that a minority cannot move."""

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

    >>> import numpy as np
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
        if not self.limit > 0:
            raise ValueError(f"limit must be positive; got {self.limit}")

    def __call__(self, scores: Scores, test: int) -> Verdict:
        threshold = robust_threshold(scores, self.limit) if len(scores) else math.inf
        return Verdict(scores > threshold, threshold)
