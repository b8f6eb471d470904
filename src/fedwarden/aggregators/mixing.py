"""Wrappers that change the updates before another rule sees them: nearest-neighbour mixing, bucketing, and ARC."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.registry import register
from ..core.seeds import numpy_rng
from ..core.stats import Norms, Weights, shrink
from ..core.types import Aggregate, Cohort, Server, State
from ..updates.formed import Mixed
from ..updates.gram import squared_distances
from .common import inner, tolerated, widen


def neighbour_matrix(squares: NDArray[np.float64], f: int) -> NDArray[np.float64]:
    """Weights that replace every update by the mean of the n - f closest to it, itself included.

        y_i = 1 / (n - f) * sum_{j in N_i} x_j

    Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity (2023), algorithm 2.

    >>> points = np.array([0.0, 1.0, 9.0])
    >>> (neighbour_matrix((points[:, None] - points) ** 2, f=1) @ points).tolist()
    [0.5, 0.5, 5.0]
    """
    n = len(squares)
    if not 0 <= 2 * f < n:
        raise ValueError(f"nearest-neighbour mixing needs n > 2f clients and f >= 0; got n={n}, f={f}")
    matrix = np.zeros((n, n))
    nearest = np.argsort(squares, axis=1, kind="stable")[:, : n - f]
    np.put_along_axis(matrix, nearest, 1 / (n - f), axis=1)
    return matrix


def bucket_matrix(order: NDArray[np.int64], s: int) -> NDArray[np.float64]:
    """Weights that average the updates in buckets of s in a given order; the last bucket takes what is left.

    Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing (2022), algorithm 1.

    >>> (bucket_matrix(np.array([2, 0, 1]), s=2) @ np.array([1.0, 5.0, 3.0])).tolist()
    [2.0, 5.0]
    """
    if s < 1:
        raise ValueError(f"bucketing needs buckets of at least one update; got s={s}")
    buckets = [order[i : i + s] for i in range(0, len(order), s)]
    matrix = np.zeros((len(buckets), len(order)))
    for row, bucket in zip(matrix, buckets, strict=True):
        row[bucket] = 1 / len(bucket)
    return matrix


def arc_factors(lengths: Norms, f: int) -> Weights:
    """The factors that shorten the k longest updates to the length of the next one.

        k = floor(2 (f / n) (n - f)),   L = the (k + 1)-th largest length,   y_i = min(1, L / ||x_i||) x_i

    Allouah et al., Adaptive Gradient Clipping for Robust Federated Learning (2025), Adaptive Robust Clipping.

    >>> arc_factors(np.array([1.0, 2.0, 8.0, 4.0]), f=1).tolist()  # k = 1
    [1.0, 1.0, 0.5, 1.0]
    """
    n = len(lengths)
    if not 0 <= 2 * f < n:
        raise ValueError(f"arc needs n > 2f clients and f >= 0; got n={n}, f={f}")
    clipped = 2 * f * (n - f) // n
    return shrink(lengths, float(np.sort(lengths)[n - 1 - clipped]))


def _pairs(wrapper: Any) -> bool:
    return inner(wrapper.then).pairs


def _carries(wrapper: Any) -> bool:
    return inner(wrapper.then).carries


def _init(wrapper: Any) -> State:
    return inner(wrapper.then).init()


def _equip(wrapper: Any, server: Server) -> Any:
    return replace(wrapper, then=inner(wrapper.then).equip(server))


@register("aggregator", "nearest_neighbour_mixing")
@dataclass(frozen=True)
class NearestNeighbourMixing:
    """Another rule on updates averaged with their nearest neighbours; ``f`` by default the most that it tolerates."""

    pairs: ClassVar[bool] = True

    f: int | None = None
    then: Any = "trimmed_mean"

    carries, init, equip = property(_carries), _init, _equip

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        keep = np.flatnonzero(weights > 0)
        kept = cohort.select(keep.tolist())
        f = tolerated(cohort, self.f, (len(kept) - 1) // 2)
        matrix = neighbour_matrix(squared_distances(kept.updates.gram()), f)
        state, result = _on_mixed(self.then, state, kept, kept.client_ids, matrix)
        return state, widen(result, keep, len(cohort))


@register(
    "aggregator",
    "bucketing",
    exempt={
        "permutation": "buckets are drawn by client id, and rows alone have none",
        "defaults": "few clients make too few buckets",
    },
)
@dataclass(frozen=True)
class Bucketing:
    """Another rule on the means of random buckets of ``s`` clients, drawn anew every round."""

    s: int = 2
    then: Any = "geometric_median"
    seed: int = 0

    pairs, carries, init, equip = property(_pairs), property(_carries), _init, _equip

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        keep = np.flatnonzero(weights > 0)
        kept = cohort.select(keep.tolist())
        # a client's place depends on its id, not on the order in which replies came
        keys = [numpy_rng(self.seed, "bucketing", cohort.round, c).random() for c in kept.client_ids]
        matrix = bucket_matrix(np.argsort(keys, kind="stable"), self.s)
        state, result = _on_mixed(self.then, state, kept, tuple(map(str, range(len(matrix)))), matrix)
        return state, widen(result, keep, len(cohort))


@register("aggregator", "arc", exempt=dict.fromkeys(("translation", "near-agreement"), "lengths are taken from zero"))
@dataclass(frozen=True)
class ARC:
    """Another rule on updates of which the longest are shortened; ``f`` by default the most that it tolerates.

    By default the shortened updates are mixed with their nearest neighbours, and those averaged by a trimmed mean.
    """

    f: int | None = None
    then: Any = "nearest_neighbour_mixing"

    pairs, carries, init, equip = property(_pairs), property(_carries), _init, _equip

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        keep = np.flatnonzero(weights > 0)
        kept = cohort.select(keep.tolist())
        factors = arc_factors(kept.updates.lengths(), tolerated(cohort, self.f, (len(kept) - 1) // 2))
        clipped = replace(kept, updates=Mixed(kept.updates, np.diag(factors)))
        state, result = inner(self.then).step(state, clipped, weights[keep])
        return state, Aggregate(result.update)  # no mean of what the clients sent, so that it has no weights


def _on_mixed(
    then: Any, state: State, cohort: Cohort, ids: tuple[str, ...], matrix: NDArray[np.float64]
) -> tuple[State, Aggregate]:
    """The inner rule's word on the mixed updates; its weights told in terms of the clients."""
    ones = np.ones(len(matrix))
    mixed = Cohort(cohort.round, ids, Mixed(cohort.updates, matrix), ones, cohort.params, rejected=cohort.rejected)
    state, result = inner(then).step(state, mixed, ones)
    return state, Aggregate(result.update, None if result.weights is None else matrix.T @ result.weights)
