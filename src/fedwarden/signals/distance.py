"""How far a client's update lies from the centre of the cohort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ..core.errors import one_of
from ..core.registry import register
from ..core.stats import Mask, Scores, Weights
from ..core.types import Cohort
from ..updates.gram import distances_to, geometric_median
from ..updates.ranks import median
from ..updates.updates import Updates


def mean_distance(updates: Updates, trusted: Mask, shares: Weights) -> Scores:
    """Distance to the mean of the trusted updates.

        D_i = ||x_i - mu||,   mu = mean of x_j over trusted j

    PID-MADE, eq. 1. Differs from the authors' code: clients excluded earlier do not pull the mean. ``shares`` only
    name the sum that the same read collects for the aggregation.

    >>> rows = Updates.of(np.array([[0.0, 0.0], [0.0, 2.0], [3.0, 1.0]]))
    >>> mean_distance(rows, np.array([True, True, False]), np.array([0.5, 0.5, 0.0])).tolist()
    [1.0, 1.0, 3.0]
    """
    return np.asarray(np.sqrt(updates.survey(trusted, shares).sq_distances), dtype=np.float64)


def median_distance(updates: Updates, trusted: Mask) -> Scores:
    """Distance to the coordinate-wise median of the trusted updates.

    >>> median_distance(Updates.of(np.array([[0.0], [1.0], [9.0]])), np.ones(3, bool)).tolist()
    [1.0, 0.0, 8.0]
    """
    if trusted.all():
        return updates.distances(median)
    index = np.flatnonzero(trusted)
    return updates.distances(lambda block: median(block[index]))


def geometric_median_distance(updates: Updates, trusted: Mask) -> Scores:
    """Distance to the geometric median of the trusted updates, from the Gram matrix.

    >>> geometric_median_distance(Updates.of(np.array([[0.0], [1.0], [9.0]])), np.ones(3, bool)).round(4).tolist()
    [1.0, 0.0, 8.0]
    """
    gram, index = updates.compared().gram(), np.flatnonzero(trusted)
    weights = np.zeros(len(updates))
    weights[index] = geometric_median(gram[np.ix_(index, index)], np.full(len(index), 1.0 / len(index)))
    return distances_to(gram, weights)


@register("signal", "centroid_distance")
@dataclass(frozen=True)
class CentroidDistance:
    """Distance of each update to the mean, the coordinate median or the geometric median of the cohort."""

    centre: Literal["mean", "median", "geometric_median"] = "mean"

    words: ClassVar[str] = "its update lies far out"
    weights_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of("centre", self.centre, Literal["mean", "median", "geometric_median"])

    @property
    def spread(self) -> bool:
        """Whether the first read of the updates, which admission makes, is to tell distances to the mean too."""
        return self.centre == "mean"

    @property
    def pairs(self) -> bool:
        return self.centre == "geometric_median"

    def __call__(self, cohort: Cohort) -> Scores:
        if self.spread:
            return mean_distance(cohort.updates, cohort.reference, cohort.shares)
        distance = median_distance if self.centre == "median" else geometric_median_distance
        return distance(cohort.updates, cohort.reference)
