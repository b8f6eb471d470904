"""Clients that pull against the others, and clients that are too much like one another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.registry import register
from ..core.stats import Mask, Scores
from ..core.types import Cohort
from ..updates.gram import squared_distances

MOST = math.log(1e6)  # the largest ratio told apart; equal updates have none


def agreement(similarity: NDArray[np.float64], trusted: Mask) -> Scores:
    """The median cosine of each update to those of the other trusted clients; of two in the middle, the higher.

        g_i = upper median of cos(x_i, x_j) over trusted j != i

    Attackers in the minority may be half of an honest client's others: the higher is then an honest one, or as good.

    >>> c = np.array([[1.0, 0.8, 0.6, -1.0], [0.8, 1.0, 0.7, -0.9], [0.6, 0.7, 1.0, -0.8], [-1.0, -0.9, -0.8, 1.0]])
    >>> agreement(c, np.ones(4, bool)).tolist()
    [0.6, 0.7, 0.6, -0.9]
    """
    others = np.where(trusted[None, :] & ~np.eye(len(similarity), dtype=bool), similarity, np.nan)
    out, many = np.zeros(len(similarity)), (~np.isnan(others)).sum(axis=1)
    some = many > 0
    if some.any():
        rank = many[some] // 2
        out[some] = np.partition(others[some], np.unique(rank), axis=1)[np.arange(len(rank)), rank]  # NaN come last
    return out


def closeness(squares: NDArray[np.float64], trusted: Mask) -> Scores:
    """How many times closer each update's nearest neighbour is than the median client's, in logs.

        t_i = log(median over trusted j of r_j / r_i),   r_i = min_{j != i} ||x_i - x_j||

    Honest clients differ by the noise of their own samples; copies of one update do not. 0 where at least half of the
    trusted clients are copies: then there is nothing to compare with.

    >>> points = np.array([0.0, 1.0, 3.0, 6.0, 6.0])
    >>> closeness((points[:, None] - points) ** 2, np.ones(5, bool)).round(2).tolist()
    [0.0, 0.0, -0.69, 13.82, 13.82]
    """
    if len(squares) < 2:
        return np.zeros(len(squares))
    nearest = np.sqrt(np.min(squares + np.diag(np.full(len(squares), np.inf)), axis=1))
    middle = np.median(nearest[trusted])
    if not middle > 0:
        return np.zeros(len(squares))
    return np.asarray(np.log(middle) - np.log(np.maximum(nearest, middle * math.exp(-MOST))), dtype=np.float64)


@register("signal", "direction")
@dataclass(frozen=True)
class Direction:
    """How much less an update agrees in direction with the others than the median client's does."""

    words: ClassVar[str] = "its update points away from the others'"
    weights_only: ClassVar[bool] = True
    pairs: ClassVar[bool] = True

    def __call__(self, cohort: Cohort) -> Scores:
        found = agreement(cohort.updates.compared().cosines(), cohort.reference)
        return np.asarray(np.median(found[cohort.reference]) - found, dtype=np.float64)


@register("signal", "twins")
@dataclass(frozen=True)
class Twins:
    """How many times closer an update is to another one than is usual here, in logs: clients that send the same."""

    words: ClassVar[str] = "it sends what another client sends"
    weights_only: ClassVar[bool] = True
    pairs: ClassVar[bool] = True

    def __call__(self, cohort: Cohort) -> Scores:
        return closeness(squared_distances(cohort.updates.compared().gram()), cohort.reference)
