"""The point with the smallest sum of distances to the updates (RFA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.registry import register
from ..core.stats import Weights
from ..core.types import Aggregate, Cohort, State
from ..updates import gram
from ..updates.updates import Updates
from .common import counted, widen


def geometric_median(updates: Updates, shares: Weights) -> Aggregate:
    """The geometric median of the updates, by Weiszfeld's iteration in n dimensions and one weighted sum in d.

        u = argmin_z sum_i s_i ||x_i - z|| = sum_i a_i x_i

    Pillutla et al., Robust Aggregation for Federated Learning, arXiv 1912.13445. See :func:`gram.geometric_median`.

    >>> import numpy as np
    >>> geometric_median(Updates.of(np.array([[0.0], [4.0], [90.0]])), np.ones(3)).update.round(decimals=3).tolist()
    [4.0]
    """
    weights = gram.geometric_median(updates.gram(), shares)
    return Aggregate(updates.weighted_sum(weights), weights)


@register("aggregator", "geometric_median")
@dataclass(frozen=True)
class GeometricMedian:
    """The point with the smallest sum of distances to the updates (RFA); weighted by example counts where asked.

    A client with half of the weight is the geometric median by itself, and counts are what clients say they are.
    """

    pairs: ClassVar[bool] = True

    weighted: bool = False

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        keep, kept, shares = counted(cohort, weights, self.weighted)
        return state, widen(geometric_median(kept, shares), keep, len(cohort))
