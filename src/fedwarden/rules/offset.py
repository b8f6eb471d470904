"""A fixed distance above the median, for scores that have a scale of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..core.registry import register
from ..core.stats import Scores
from ..core.types import Verdict


def offset_threshold(scores: Scores, limit: float) -> float:
    """The median plus a constant: less than half of the scores can ever lie above it.

        tau = median(u) + limit

    >>> import numpy as np
    >>> offset_threshold(np.array([0.0, 0.0, 0.0, 5.0]), limit=2.0)
    2.0
    """
    return float(np.median(scores) + limit)


@register("rule", "offset", exempt={"scaling": "the limit is in the unit of the score"})
@dataclass(frozen=True)
class Offset:
    """Flag scores more than ``limit`` above the median, in the score's own unit."""

    limit: float = 2.0

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise ValueError(f"limit must be positive; got {self.limit}")

    def __call__(self, scores: Scores, test: int) -> Verdict:
        threshold = offset_threshold(scores, self.limit) if len(scores) else math.inf
        return Verdict(scores > threshold, threshold)
