"""Rules that pick the updates with the closest neighbours: Krum, Multi-Krum, Bulyan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.registry import register
from ..core.stats import Weights
from ..core.types import Aggregate, Cohort, State
from ..updates.gram import squared_distances
from ..updates.updates import Updates
from .common import among, tolerated


def from_others(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared distances with every update infinitely far from itself."""
    return squares + np.diag(np.full(len(squares), np.inf))


def by_score(near: NDArray[np.float64], neighbours: int) -> NDArray[np.int64]:
    """The clients by their score, from squared distances to the others in rising order; see :func:`ranking`."""
    return np.lexsort((near[:, : neighbours + 1].sum(axis=1), near[:, :neighbours].sum(axis=1)))


def ranking(squares: NDArray[np.float64], neighbours: int) -> NDArray[np.int64]:
    """The clients from the smallest score on; of equal scores one more neighbour decides, then the first client.

        s_i = sum_{j in N_i} ||x_i - x_j||^2,   N_i the n - f - 2 updates closest to x_i, itself left out

    Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent (2017), section 4. With one
    neighbour the two updates closest to each other always tie.

    >>> points = np.array([0.0, 1.0, 3.0])
    >>> ranking((points[:, None] - points) ** 2, neighbours=1).tolist()
    [1, 0, 2]
    """
    return by_score(np.sort(from_others(squares), axis=1), neighbours)


def multi_krum(updates: Updates, f: int, m: int) -> Aggregate:
    """The mean of the m updates with the smallest scores; Krum is m = 1.

    Blanchard et al. (2017), sections 4 and 5.

    >>> rows = Updates.of(np.array([[0.0], [1.0], [1.5], [2.0], [90.0]]))
    >>> multi_krum(rows, f=1, m=2).weights.tolist()
    [0.0, 0.5, 0.5, 0.0, 0.0]
    """
    n = len(updates)
    if f < 0 or n < 2 * f + 3:
        raise ValueError(f"krum needs n >= 2f + 3 clients and f >= 0; got n={n}, f={f}")
    if not 1 <= m <= n - f:
        raise ValueError(f"multi-krum needs 1 <= m <= n - f; got m={m}, n={n}, f={f}")
    weights = np.zeros(n)
    weights[ranking(squared_distances(updates.gram()), n - f - 2)[:m]] = 1 / m
    return Aggregate(updates.weighted_sum(weights), weights)


def bulyan_selection(squares: NDArray[np.float64], f: int) -> list[int]:
    """The n - 2f clients that Krum picks one after another, each time among those left.

    El Mhamdi et al., The Hidden Vulnerability of Distributed Learning in Byzantium (2018), section 4, first step. Where
    fewer than f + 3 are left, at least one neighbour is counted.

    >>> points = np.array([0.0, 1.0, 1.5, 2.0, 3.0, 90.0, 2.5])
    >>> sorted(bulyan_selection((points[:, None] - points) ** 2, f=1))
    [1, 2, 3, 4, 6]
    """
    left = np.arange(len(squares))
    others = from_others(squares)
    who = np.argsort(others, axis=1, kind="stable")  # once: whoever is chosen leaves every row
    near = np.take_along_axis(others, who, axis=1)
    chosen: list[int] = []
    while len(chosen) < len(squares) - 2 * f:
        first = int(by_score(near, max(len(left) - f - 2, 1))[0])
        chosen.append(int(left[first]))
        stays = who != left[first]
        stays[first] = False
        left = np.delete(left, first)
        near, who = (table[stays].reshape(len(left), len(left)) for table in (near, who))
    return chosen


def bulyan(updates: Updates, f: int) -> Aggregate:
    """Select n - 2f updates by repeated Krum; per coordinate, average the n - 4f values closest to their median.

    El Mhamdi et al. (2018), section 4.

    >>> rows = Updates.of(np.array([[0.0], [1.0], [1.5], [2.0], [3.0], [90.0], [2.5]]))
    >>> bulyan(rows, f=1).update.tolist()
    [2.0]
    """
    n = len(updates)
    if f < 0 or n < 4 * f + 3:
        raise ValueError(f"bulyan needs n >= 4f + 3 clients and f >= 0; got n={n}, f={f}")
    chosen = bulyan_selection(squared_distances(updates.gram()), f)
    return Aggregate(updates.select(sorted(chosen)).nearest_mean(n - 4 * f))


@register("aggregator", "krum")
@dataclass(frozen=True)
class Krum:
    """The update with the closest neighbours; ``f`` attackers, by default the most that it tolerates."""

    pairs: ClassVar[bool] = True

    f: int | None = None

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        def rule(kept: Updates) -> Aggregate:
            return multi_krum(kept, tolerated(cohort, self.f, (len(kept) - 3) // 2), 1)

        return state, among(cohort.updates, weights, rule)


@register("aggregator", "multi_krum")
@dataclass(frozen=True)
class MultiKrum:
    """The mean of the m updates with the closest neighbours; by default n - f - 2 of them."""

    pairs: ClassVar[bool] = True

    f: int | None = None
    m: int | None = None

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        def rule(kept: Updates) -> Aggregate:
            n = len(kept)
            most = (n - 3) // 2
            f = tolerated(cohort, self.f, min(most, n - (self.m or 0)), max(most, 0))
            return multi_krum(kept, f, n - f - 2 if self.m is None else self.m)

        return state, among(cohort.updates, weights, rule)


@register("aggregator", "bulyan")
@dataclass(frozen=True)
class Bulyan:
    """Repeated Krum, then a trimmed mean about the median; ``f`` attackers, by default the most that it tolerates.

    With f = 0 it is the mean, so that the default is at least 1 and needs 7 clients.
    """

    pairs: ClassVar[bool] = True

    f: int | None = None

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        def rule(kept: Updates) -> Aggregate:
            most = (len(kept) - 3) // 4
            return bulyan(kept, tolerated(cohort, self.f, most, max(most, 1)))

        return state, among(cohort.updates, weights, rule)
