"""The weighted mean of the updates (FedAvg)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.registry import register
from ..core.stats import Weights
from ..core.types import Aggregate, Cohort, State
from ..updates.updates import Updates


def mean(updates: Updates, weights: Weights) -> Aggregate:
    """The mean of the updates with the given non-negative weights, scaled to sum to 1.

        u = sum_i p_i x_i,   p_i = w_i / sum_j w_j

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data (2017), algorithm 1.

    >>> mean(Updates.of(np.array([[1.0], [4.0]])), np.array([2.0, 1.0])).update.tolist()
    [2.0]
    """
    total = float(weights.sum())
    if not (total > 0 and weights.min() >= 0):
        raise ValueError(f"mean needs non-negative weights with a positive sum; got a sum of {total}")
    shares = weights / total
    return Aggregate(updates.weighted_sum(shares), shares)


@register("aggregator", "mean", exempt={"defaults": "the mean withstands no far client"})
@dataclass(frozen=True)
class Mean:
    """The mean of the updates, weighted by example counts (FedAvg) or not."""

    weighted: bool = True

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        counts = cohort.num_examples if self.weighted else np.ones(len(cohort))
        return state, mean(cohort.updates, weights * counts)
