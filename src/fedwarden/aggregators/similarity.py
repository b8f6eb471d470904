"""Rules that compare the directions of the updates: FoolsGold and clustered federated learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from ..core.registry import register
from ..core.stats import Weights
from ..core.types import Aggregate, Cohort, State
from ..updates.updates import Updates
from .common import counted, widen


def foolsgold_weights(similarity: NDArray[np.float64]) -> Weights:
    """How far each client is from having a twin: 1 for one that is like no other, 0 for one of several that agree.

        v_i = max_j c_ij;   c_ij <- c_ij v_i / v_j where v_j > v_i;   a_i = 1 - max_j c_ij, scaled to max 1;
        a_i <- log(a_i / (1 - a_i)) + 1/2, kept in [0, 1]

    Fung et al., The Limitations of Federated Learning in Sybil Settings (2020), algorithm 1, with kappa = 1 and
    without its weighting of features.

    >>> twins = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> foolsgold_weights(twins).tolist()
    [0.0, 0.0, 1.0]
    """
    c = similarity - np.diag(np.diag(similarity))
    peak = c.max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        c = np.where(peak[None, :] > peak[:, None], c * (peak[:, None] / peak[None, :]), c)
        a = np.clip(1 - c.max(axis=1), 0.0, 1.0)
        a = a / a.max()
        a = np.log(np.minimum(a, 0.99) / (1 - np.minimum(a, 0.99))) + 0.5
    return np.asarray(np.clip(np.nan_to_num(a, nan=0.0, neginf=0.0), 0.0, 1.0), dtype=np.float64)


def bipartition(similarity: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The split of the clients into two groups whose closest members are as unlike as possible; True in the larger.

        argmin over splits (A, B) of max_{i in A, j in B} c_ij

    Sattler et al., Clustered Federated Learning (2020), equation 19, solved by single linkage. Of two groups of the
    same size, the larger is the one whose members are more alike. Where no split is better than another, as with equal
    clients, everybody is in one group.

    >>> c = np.array([[1.0, 0.9, -0.5], [0.9, 1.0, -0.4], [-0.5, -0.4, 1.0]])
    >>> bipartition(c).tolist()
    [True, True, False]
    """
    distance = 1 - (similarity + similarity.T) / 2
    np.fill_diagonal(distance, 0.0)
    tree = linkage(squareform(np.maximum(distance, 0.0), checks=False), method="single")
    first = fcluster(tree, 2, criterion="maxclust") == 1
    if first.all():
        return np.asarray(first)
    inside = [float(similarity[np.ix_(group, group)].mean()) for group in (first, ~first)]
    larger = (first.sum(), inside[0]) >= ((~first).sum(), inside[1])
    return np.asarray(first if larger else ~first)


@register(
    "aggregator",
    "foolsgold",
    exempt={
        "translation": "angles are taken from zero",
        "identical": "clients that agree are Sybils to it",
        "near-agreement": "angles are taken from zero",
        "defaults": "it looks for clients that agree, not for one far out",
    },
)
@dataclass(frozen=True)
class FoolsGold:
    """Clients whose summed updates point the same way count less: made against Sybils, not against lone attackers."""

    carries: ClassVar[bool] = True

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        keep = np.flatnonzero(weights > 0)
        kept, ids = cohort.updates.select(keep), [cohort.client_ids[i] for i in keep]
        rows = [kept.select([i]).weighted_sum(np.ones(1)) for i in range(len(keep))]
        sums = {c: state[c].to(row.device) + row if c in state else row for c, row in zip(ids, rows, strict=True)}
        history = Updates.of(list(sums.values()), measured=kept.measured)
        trust = foolsgold_weights(history.cosines()) * weights[keep]
        if not trust.sum() > 0:
            raise ValueError(f"foolsgold finds all {len(keep)} clients alike and trusts none of them")
        shares = trust / trust.sum()
        return {**state, **sums}, widen(Aggregate(kept.weighted_sum(shares), shares), keep, len(cohort))


@register(
    "aggregator",
    "clustered",
    exempt={
        "translation": "angles are taken from zero",
        "near-agreement": "angles are taken from zero",
        "defaults": "it looks at directions, and a far client may be in the larger group",
    },
)
@dataclass(frozen=True)
class Clustered:
    """The mean of the larger of two groups, split by direction where no two across are more alike than ``limit``."""

    pairs: ClassVar[bool] = True

    limit: float = 1.0
    weighted: bool = True

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        keep, kept, shares = counted(cohort, weights, self.weighted)
        if len(keep) < 3:
            raise ValueError(f"clustered needs n >= 3 clients; got n={len(keep)}")
        similarity = kept.cosines()
        group = bipartition(similarity)
        if not group.all() and float(similarity[np.ix_(group, ~group)].max()) <= self.limit:
            shares = np.where(group, shares, 0.0)
        shares = shares / shares.sum()
        return state, widen(Aggregate(kept.weighted_sum(shares), shares), keep, len(cohort))
