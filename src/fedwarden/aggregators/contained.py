"""The mean in which clients under suspicion weigh less, the more the longer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.registry import register
from ..core.stats import Scores, Weights, cut
from ..core.types import Aggregate, Cohort, State
from ..updates.updates import Updates

LEAST = 0.05  # of its weight that every client keeps


def lasting(levels: Scores, rounds: Scores, suspicion: Scores, memory: int) -> Scores:
    """The suspicion of each client over its rounds: their mean, and of the recent ones once there are more.

        l_t = l_{t-1} + (s_t - l_{t-1}) / min(t, memory)

    >>> lasting(np.array([0.0, 0.2]), np.array([0, 9]), np.array([1.0, 0.7]), memory=5).round(6).tolist()
    [1.0, 0.3]
    """
    return np.asarray(levels + (suspicion - levels) / np.minimum(rounds + 1, memory), dtype=np.float64)


def leniency(levels: Scores, low: float, high: float) -> Weights:
    """The part of its weight that each client keeps: all up to ``low``, little from ``high`` on.

        k_i = max(1 - (l_i - low)+ / (high - low), 0.05)

    >>> leniency(np.array([0.1, 0.3, 0.9]), low=0.1, high=0.5).round(6).tolist()
    [1.0, 0.5, 0.05]
    """
    if not 0 <= low < high:
        raise ValueError(f"leniency needs 0 <= low < high; got {low} and {high}")
    return cut(1 - (levels - low) / (high - low), LEAST, 1.0)


def contained(updates: Updates, weights: Weights, kept: Weights) -> Aggregate:
    """The mean of the updates with the given weights, of which each client keeps a part.

        u = sum_i p_i x_i,   p_i = w_i k_i / sum_j w_j k_j

    >>> contained(Updates.of(np.array([[1.0], [4.0]])), np.array([2.0, 2.0]), np.array([1.0, 0.5])).update.tolist()
    [2.0]
    """
    left = weights * kept
    total = float(left.sum())
    if not (total > 0 and left.min() >= 0):
        raise ValueError(f"the contained mean needs non-negative weights with a positive sum; got a sum of {total}")
    return Aggregate(updates.weighted_sum(left / total), left / total)


@register(
    "aggregator",
    "contained",
    exempt={
        "defaults": "without a guard nobody is suspected, and the mean withstands no far client",
    },
)
@dataclass(frozen=True)
class Contained:
    """The mean, by example counts or not, in which clients under suspicion lose weight, from ``low`` to ``high``.

    It is the guard's suspicion, averaged over about the last ``memory`` rounds of the client. Without suspicion it is
    the mean, at the same cost.
    """

    low: float = 0.15
    high: float = 0.5
    memory: int = 5
    weighted: bool = True

    def __post_init__(self) -> None:
        if not (0 <= self.low < self.high and self.memory >= 1):
            raise ValueError(f"needs 0 <= low < high and a memory of at least a round; got {self}")

    def init(self) -> State:
        return {}

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        levels, rounds = np.array([state.get(c, (0.0, 0)) for c in cohort.client_ids]).T
        levels = lasting(levels, rounds, cohort.suspicion, self.memory)
        now = zip(levels.tolist(), (rounds + 1).astype(int).tolist(), strict=True)
        counts = cohort.num_examples if self.weighted else np.ones(len(cohort))
        made = contained(cohort.updates, weights * counts, leniency(levels, self.low, self.high))
        return {**state, **dict(zip(cohort.client_ids, now, strict=True))}, made
