"""The weighted mean of the updates (FedAvg), and the point with the smallest sum of distances to them (RFA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.registry import register
from ..core.stats import Weights
from ..core.types import Aggregate, Cohort, State
from ..updates import gram
from ..updates.updates import Updates
from .common import counted, widen


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


def geometric_median(updates: Updates, shares: Weights) -> Aggregate:
    """The geometric median of the updates, by Weiszfeld's iteration in n dimensions and one weighted sum in d.

        u = argmin_z sum_i s_i ||x_i - z|| = sum_i a_i x_i

    Pillutla et al., Robust Aggregation for Federated Learning, arXiv 1912.13445. See :func:`gram.geometric_median`.

    >>> geometric_median(Updates.of(np.array([[0.0], [4.0], [90.0]])), np.ones(3)).update.round(decimals=3).tolist()
    [4.0]
    """
    weights = gram.geometric_median(updates.gram(), shares)
    return Aggregate(updates.weighted_sum(weights), weights)


@register("aggregator", "mean", exempt={"defaults": "the mean withstands no far client"})
@dataclass(frozen=True)
class Mean:
    """The mean of the updates, weighted by example counts (FedAvg) or not."""

    weighted: bool = True

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        counts = cohort.num_examples if self.weighted else np.ones(len(cohort))
        return state, mean(cohort.updates, weights * counts)


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
