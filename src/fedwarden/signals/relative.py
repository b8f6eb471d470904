"""How many times farther from the centre a client lies than the typical one, whatever the scale of the round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.registry import register
from ..core.stats import Counts, Mask, Scores, shortening
from ..core.types import Cohort
from ..updates.gram import distances_to

STEEPEST = 0.7  # more is not believed of any cohort: with a factor of 2 it explains less than the effect size of `auto`
APART = 0.2  # pairs of data sets more alike in size, in logs, say nothing about the slope
PAIRS = 5  # fewer of them give no slope


def pairwise_slope(x: Scores, y: Scores) -> float:
    """The median slope of all pairs of points that lie apart in x; 0 where fewer than five do.

        b = median over pairs with |x_j - x_i| > 0.2 of (y_j - y_i) / (x_j - x_i)

    Theil (1950) and Sen (1968). Differs from theirs: pairs that are close in x are left out.

    >>> pairwise_slope(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), np.array([0.0, 2.0, 4.0, 6.0, 8.0, 99.0]))
    2.0
    >>> pairwise_slope(np.zeros(4), np.arange(4.0))
    0.0
    """
    if not len(x) or x.max() - x.min() <= APART:
        return 0.0
    i, j = np.triu_indices(len(x), 1)
    run, rise = x[j] - x[i], y[j] - y[i]
    apart = np.abs(run) > APART
    return float(np.median(rise[apart] / run[apart])) if apart.sum() >= PAIRS else 0.0


def log_ratio(distances: Scores, counts: Counts, trusted: Mask, excuse: float) -> Scores:
    """Log of each client's distance over the median one, less what the size of its data set explains.

        l_i = log(D_i / median D) - b clip(log(c_i / median c), -log excuse, log excuse),   then less its median

    b is the pairwise slope of log D on log c over trusted clients, kept in [0, 0.7]: a client with more data takes more
    steps and moves farther. Counts are a client's own word, so a count buys, or costs, no more than a factor
    ``excuse``; and where others forge theirs, b moves nobody by more than 0.7 log excuse either way.

    >>> everyone, same = np.ones(3, bool), np.ones(3)
    >>> np.exp(log_ratio(np.array([1.0, 2.0, 8.0]), same, everyone, 2.0)).round(6).tolist()
    [0.5, 1.0, 4.0]
    """
    tiny = np.finfo(np.float64).tiny
    logs = np.log(np.maximum(distances, tiny))
    sizes = np.log(counts / np.median(counts[trusted]))
    slope = min(max(pairwise_slope(sizes[trusted], logs[trusted]), 0.0), STEEPEST)
    logs = logs - slope * np.clip(sizes, -math.log(excuse), math.log(excuse))
    return np.asarray(logs - np.median(logs[trusted]), dtype=np.float64)


def core_distances(gram: NDArray[np.float64], trusted: Mask) -> Scores:
    """Distance to the mean of the trusted half that lies closest together, on one scale for those in it and not.

        core = the floor(n/2) + 1 trusted rows closest to the mean of the trusted rows,   k of them
        D_i = ||x_i - mean(core)|| / sqrt(1 - 1/k) for i in the core,   / sqrt(1 + 1/k) for the others

    One concentration step of Rousseeuw and Van Driessen, A Fast Algorithm for the Minimum Covariance Determinant
    Estimator (1999): a minority that pulls the mean does not pull its core. The divisors are what independent rows of
    one variance have. ``gram`` holds the inner products of the rows about any point.

    >>> points = np.array([0.0, 2.0, 1.0, 1.0, 9.0])
    >>> core_distances(np.outer(points, points), np.ones(5, bool)).round(3).tolist()  # the core: 2, 1 and 1
    [1.155, 0.816, 0.408, 0.408, 6.64]
    """
    near = distances_to(gram, trusted / trusted.sum())
    index = np.flatnonzero(trusted)
    k = len(index) // 2 + 1
    core = np.zeros(len(near), bool)
    core[index[np.argsort(near[index], kind="stable")[:k]]] = True
    scale = np.sqrt(np.where(core, max(1 - 1 / k, 1e-9), 1 + 1 / k))
    return np.asarray(distances_to(gram, core / core.sum()) / scale, dtype=np.float64)


@register("signal", "relative_distance")
@dataclass(frozen=True)
class RelativeDistance:
    """Log of each update's distance to the core of the cohort over the median one, for its size of data set.

    If ``bounded``, the smaller of that and of the same with updates longer than the median one shortened to it: a
    client that takes more steps than the others in the same direction is not far from them.
    """

    excuse: float = 2.0
    bounded: bool = False

    words: ClassVar[str] = "its update lies far out"
    weights_only: ClassVar[bool] = True
    pairs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.excuse >= 1:
            raise ValueError(f"excuse is a factor of at least 1; got {self.excuse}")

    def __call__(self, cohort: Cohort) -> Scores:
        updates, within = cohort.updates, cohort.reference
        compared = updates.compared()
        found = log_ratio(core_distances(compared.gram(), within), cohort.claimed, within, self.excuse)
        if not self.bounded:
            return found
        factors = shortening(updates.lengths(), within, 1.0)
        near = core_distances(np.outer(factors, factors) * compared.inner_products(), within)
        return np.minimum(found, log_ratio(near, cohort.claimed, within, self.excuse))
