"""Rules that shorten long updates: norm clipping and centered clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.registry import register
from ..core.stats import Weights, shrink
from ..core.types import Aggregate, Cohort, State
from ..updates.updates import Updates
from .common import counted


def norm_clipping(updates: Updates, shares: Weights, limit: float) -> Aggregate:
    """The mean of the updates, each shortened to at most the limit.

        u = sum_i p_i x_i min(1, limit / ||x_i||)

    Sun et al., Can You Really Backdoor Federated Learning? (2019), section 5; without their noise.

    >>> norm_clipping(Updates.of(np.array([[3.0], [-1.0]])), np.full(2, 0.5), limit=2.0).update.tolist()
    [0.5]
    """
    if not limit >= 0:
        raise ValueError(f"norm clipping needs a limit of at least 0; got {limit}")
    return Aggregate(updates.weighted_sum(shares * shrink(updates.lengths(), limit)))


def centered_weights(products: NDArray[np.float64], limit: float | None, steps: int) -> Weights:
    """Coefficients of the clients and, last, of the old centre after some steps of centered clipping.

        v <- v + 1/n sum_i (x_i - v) min(1, limit / ||x_i - v||)

    Karimireddy et al., Learning from History for Byzantine Robust Optimization (2021), equation (CC). ``products`` are
    the inner products of x_1 ... x_n and v. Differs from the paper: without a limit, it is the median distance to v.

    >>> points = np.array([1.0, 2.0, 9.0, 0.0])
    >>> round(float(centered_weights(np.outer(points, points), 2.0, 1) @ points), 6)  # (1 + 2 + 2) / 3
    1.666667
    """
    n = len(products) - 1
    a = np.append(np.zeros(n), 1.0)
    for _ in range(steps):
        to_centre = products @ a
        squares = np.diag(products)[:n] - 2 * to_centre[:n] + a @ to_centre
        distances = np.sqrt(np.maximum(squares, 0.0))
        factors = shrink(distances, float(np.median(distances)) if limit is None else limit) / n
        a = np.append(a[:n] + factors - factors.sum() * a[:n], a[n] * (1 - factors.sum()))
    return np.asarray(a, dtype=np.float64)


def centered_clipping(updates: Updates, centre: Tensor, limit: float | None, steps: int) -> Aggregate:
    """Move the old centre towards the updates, none of which pulls with more than the limit.

    Karimireddy et al. (2021), algorithm 2; the iteration runs on inner products: three reads of the updates in all. A
    single step needs no more than each update's length and its product with the centre.

    >>> rows = Updates.of(np.array([[1.0], [2.0], [9.0]]))
    >>> centered_clipping(rows, torch.zeros(1), limit=2.0, steps=1).update.round(decimals=4).tolist()
    [1.6667]
    """
    if steps < 1 or (limit is not None and not limit >= 0):
        raise ValueError(f"centered clipping needs a limit of at least 0 and a step or more; got {limit} and {steps}")
    n = len(updates)
    products = np.zeros((n + 1, n + 1))
    products[:n, :n] = updates.inner_products() if steps > 1 else np.diag(updates.lengths() ** 2)
    products[n, :n] = products[:n, n] = updates.dots(centre)
    products[n, n] = sum(float(centre[a:b].double().square().sum()) for a, b in updates.measured)
    a = centered_weights(products, limit, steps)
    return Aggregate(updates.weighted_sum(a[:n]) + a[n] * centre)


@register(
    "aggregator",
    "norm_clipping",
    exempt=dict.fromkeys(("translation", "near-agreement"), "lengths are taken from zero")
    | dict.fromkeys(("scaling", "identical"), "the limit has a unit of its own"),
)
@dataclass(frozen=True)
class NormClipping:
    """The mean of updates shortened to a limit; by default their median norm."""

    limit: float | None = None
    weighted: bool = True

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        _, kept, shares = counted(cohort, weights, self.weighted)
        limit = float(np.median(kept.lengths())) if self.limit is None else self.limit
        return state, norm_clipping(kept, shares / shares.sum(), limit)


@register(
    "aggregator",
    "centered_clipping",
    exempt=dict.fromkeys(("translation", "near-agreement"), "the centre of the first round is zero")
    | dict.fromkeys(("scaling", "identical"), "the radius has a unit of its own"),
)
@dataclass(frozen=True)
class CenteredClipping:
    """Clipping about the last round's result; by default to the median distance from it."""

    carries: ClassVar[bool] = True

    limit: float | None = None
    steps: int = 3

    @property
    def pairs(self) -> bool:
        return self.steps > 1

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        kept = cohort.updates.select(np.flatnonzero(weights > 0))
        centre = state.get("centre", torch.zeros(kept.d, dtype=kept.dtype, device=kept.device))
        result = centered_clipping(kept, centre.to(kept.device, kept.dtype), self.limit, self.steps)
        return {"centre": result.update.clone()}, result
