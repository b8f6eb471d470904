"""The majority that points one way, clipped to the median length, with noise (FLAME)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from fedwarden.aggregators.common import counted
from fedwarden.core.registry import register
from fedwarden.core.seeds import numpy_rng
from fedwarden.core.stats import Mask, Weights, shrink
from fedwarden.core.types import Aggregate, Cohort, State
from fedwarden.updates.updates import Updates


def majority(distances: NDArray[np.float64]) -> Mask:
    """The first group of more than half of the clients that grows together when the closest are joined one by one.

        the component of the graph {d_ij <= h} with at least floor(n / 2) + 1 members, for the smallest such h

    Nguyen et al., FLAME: Taming Backdoors in Federated Learning (USENIX Security 2022), section 4.2: HDBSCAN with a
    smallest cluster of n / 2 + 1, one sample and a single cluster allowed. Two clusters of that size never fit, so that
    the only one loses members until the next split would leave no majority: this cut of the single-linkage tree.

    >>> points = np.array([0.0, 1.0, 3.0, 9.0])
    >>> majority(np.abs(points[:, None] - points)).tolist()
    [True, True, True, False]
    """
    n = len(distances)
    if n < 2:
        raise ValueError(f"flame needs n >= 2 clients; got n={n}")
    tree = linkage(squareform(distances, checks=False), method="single")
    height = float(tree[tree[:, 3] > n / 2, 2].min())
    groups = fcluster(tree, height, criterion="distance")
    return np.asarray(groups == np.bincount(groups).argmax())


def flame(updates: Updates, shares: Weights, noise: float, rng: np.random.Generator) -> Aggregate:
    """The mean of the updates of the majority, each shortened to the median length of all, plus Gaussian noise.

        S = median_i ||x_i||;   u = sum_{i in B} p_i x_i min(1, S / ||x_i||) + N(0, (noise S)^2),   sum_{i in B} p_i = 1

    Nguyen et al. (2022), algorithm 1; ``noise`` is their lambda, and B is the majority by cosine distance. Differs from
    the algorithm, which compares the local models: the cosines are those of the updates. Counters and running
    statistics get no noise, which could make a variance negative.

    >>> rows = Updates.of(np.array([[1.0, 0.0], [2.0, 0.0], [6.0, 0.0], [0.0, -4.0]]))
    >>> flame(rows, np.ones(4), 0.0, np.random.default_rng(0)).update.tolist()  # S = 3: (1 + 2 + 3) / 3
    [2.0, 0.0]
    """
    if not noise >= 0:
        raise ValueError(f"flame needs noise of at least 0; got {noise}")
    distances = 1 - updates.cosines()
    np.fill_diagonal(distances, 0.0)
    kept = np.where(majority(np.maximum(distances, distances.T)), shares, 0.0)
    lengths = updates.lengths()
    limit = float(np.median(lengths))
    update = updates.weighted_sum(kept / kept.sum() * shrink(lengths, limit))
    if noise * limit > 0:
        update = update.clone()  # it may be the sum that a survey holds
        for start, stop in updates.measured:
            update[start:stop] += torch.from_numpy(noise * limit * rng.standard_normal(stop - start)).to(update)
    return Aggregate(update)


@register(
    "aggregator",
    "flame",
    exempt={
        "translation": "angles are taken from zero",
        "near-agreement": "angles are taken from zero",
    },
)
@dataclass(frozen=True)
class Flame:
    """The mean of the majority by direction, clipped to the median length, plus ``noise`` times that length.

    The default noise is the paper's for images and text. It is drawn anew every round, from ``seed``.
    """

    pairs: ClassVar[bool] = True

    noise: float = 0.001
    weighted: bool = False
    seed: int = 0

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        _, kept, shares = counted(cohort, weights, self.weighted)
        rng = numpy_rng(self.seed, "flame", cohort.round)
        return state, flame(kept, shares, self.noise, rng)
