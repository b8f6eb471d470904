"""Rules that look at one coordinate at a time: median, trimmed mean, majority of signs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.registry import register
from ..core.stats import Weights
from ..core.types import Aggregate, Cohort, State
from ..updates.ranks import middle
from ..updates.updates import Updates
from .common import among, tolerated


def median(updates: Updates) -> Aggregate:
    """Per coordinate, the middle value, or the mean of the two middle ones.

        u[k] = median_i x_i[k]

    Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates (2018), definition 1.

    >>> median(Updates.of(np.array([[1.0], [2.0], [4.0], [90.0]]))).update.tolist()
    [3.0]
    """
    return Aggregate(updates.ranked_mean(*middle(len(updates))))


def trimmed_mean(updates: Updates, b: int) -> Aggregate:
    """Per coordinate, drop the b largest and the b smallest values and average the rest.

        u[k] = 1 / (n - 2b) * sum_{i = b+1}^{n-b} x_(i)[k],   x_(1)[k] <= ... <= x_(n)[k]

    Yin et al. (2018), definition 2. Differs from the paper: b is a count, not a fraction of n.

    >>> trimmed_mean(Updates.of(np.array([[1.0], [2.0], [3.0], [100.0]])), b=1).update.tolist()
    [2.5]
    """
    n = len(updates)
    if b < 0 or n <= 2 * b:
        raise ValueError(f"trimmed mean needs n > 2b updates and b >= 0; got n={n}, b={b}")
    return Aggregate(updates.ranked_mean(b, n - b))


def sign_majority(updates: Updates, weights: Weights, step: float) -> Aggregate:
    """Per coordinate, one step in the direction that most of the weight asks for; none where it is even.

        u[k] = step * sign(sum_i w_i sign(x_i[k]))

    Bernstein et al., signSGD with Majority Vote is Communication Efficient and Fault Tolerant (2019), algorithm 1.
    Differs from the paper: signs of model updates, not of gradients; counters and running statistics, which have no
    direction, are averaged.

    >>> sign_majority(Updates.of(np.array([[3.0, -1.0], [0.1, -2.0], [-9.0, 1.0]])), np.ones(3), 0.5).update.tolist()
    [0.5, -0.5]
    """
    w = torch.as_tensor(weights).to(updates.device, updates.dtype)

    def vote(block: Tensor) -> Tensor:
        return step * (w @ block.sign()).sign()

    return Aggregate(updates.columns(vote, unmeasured=lambda block: w @ block / w.sum()))


@register("aggregator", "median")
@dataclass(frozen=True)
class Median:
    """The middle value of each coordinate."""

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        return state, among(cohort.updates, weights, median)


@register("aggregator", "trimmed_mean")
@dataclass(frozen=True)
class TrimmedMean:
    """The mean of each coordinate without its b largest and b smallest values; by default a fifth of the clients."""

    b: int | None = None

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        def rule(kept: Updates) -> Aggregate:
            n = len(kept)
            return trimmed_mean(kept, tolerated(cohort, self.b, (n - 1) // 2, max(1, n // 5)))

        return state, among(cohort.updates, weights, rule)


@register(
    "aggregator",
    "sign",
    exempt=dict.fromkeys(("translation", "near-agreement"), "signs are taken from zero")
    | dict.fromkeys(("scaling", "identical"), "the length is the server's step"),
)
@dataclass(frozen=True)
class Sign:
    """The sign that most clients give each coordinate, times a step; by default the median size of an entry."""

    step_size: float | None = None

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        kept = cohort.updates.select(np.flatnonzero(weights > 0))
        entries = max(sum(b - a for a, b in kept.measured), 1)
        size = float(np.median(kept.lengths())) / entries**0.5 if self.step_size is None else self.step_size
        return state, sign_majority(kept, weights[weights > 0], size)
