"""The mean of the clients whose updates vary least in any direction (SMEA)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, islice
from math import comb
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedwarden.aggregators.common import among, tolerated
from fedwarden.core.registry import register
from fedwarden.core.stats import Weights
from fedwarden.core.types import Aggregate, Cohort, State
from fedwarden.updates.updates import Updates

TOGETHER = 4096  # subsets whose eigenvalues are found in one call


def smallest_spread(gram: NDArray[np.float64], f: int, limit: int) -> NDArray[np.int64]:
    """The n - f clients whose covariance has the smallest largest eigenvalue; of equal ones, the first clients.

        S* = argmin_{|S| = n - f} lambda_max(1 / |S| sum_{i in S} (x_i - mu_S)(x_i - mu_S)')

    Allouah, Guerraoui, Gupta, Pinot and Stephan, On the Privacy-Robustness-Utility Trilemma in Distributed Learning
    (2023), Smallest Maximum Eigenvalue Averaging. All subsets are tried, each by its (n - f, n - f) inner products.

    >>> points = np.array([0.0, 9.0, 1.0, 2.0])
    >>> smallest_spread(np.outer(points, points), f=1, limit=100).tolist()
    [0, 2, 3]
    """
    n = len(gram)
    if not 0 <= 2 * f < n:
        raise ValueError(f"smea needs n > 2f clients and f >= 0; got n={n}, f={f}")
    if comb(n, f) > limit:
        raise ValueError(
            f"smea needs at most limit={limit} subsets of n - f clients to try; got n={n}, f={f}, which have "
            f"{comb(n, f)}; give a smaller f or a larger limit, or take caf, which has n steps at most"
        )
    subsets, best, least = combinations(range(n), n - f), np.arange(n - f), np.inf
    while some := list(islice(subsets, TOGETHER)):
        chosen = np.array(some)
        products = gram[chosen[:, :, None], chosen[:, None, :]]
        to_mean = products.mean(axis=2, keepdims=True)
        about_mean = products - to_mean - to_mean.swapaxes(1, 2) + to_mean.mean(axis=1, keepdims=True)
        spread = np.linalg.eigvalsh(about_mean)[:, -1] / (n - f)
        if spread.min() < least:
            best, least = chosen[spread.argmin()], spread.min()
    return np.asarray(best, dtype=np.int64)


def smea(updates: Updates, f: int, limit: int) -> Aggregate:
    """The mean of the clients that :func:`smallest_spread` picks.

    >>> rows = Updates.of(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [70.0, 80.0, 90.0]]))
    >>> smea(rows, f=1, limit=100).update.tolist()
    [2.5, 3.5, 4.5]
    """
    weights, chosen = np.zeros(len(updates)), smallest_spread(updates.gram(), f, limit)
    weights[chosen] = 1 / len(chosen)
    return Aggregate(updates.weighted_sum(weights), weights)


@register("aggregator", "smea")
@dataclass(frozen=True)
class SMEA:
    """The mean of the n - f clients that vary least; ``f`` by default the most it tolerates.

    It tries every subset, and refuses where there are more than ``limit``: 20 clients have 167,960 with f = 9.
    """

    pairs: ClassVar[bool] = True

    f: int | None = None
    limit: int = 200_000

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        def rule(kept: Updates) -> Aggregate:
            return smea(kept, tolerated(cohort, self.f, (len(kept) - 1) // 2), self.limit)

        return state, among(cohort.updates, weights, rule)
