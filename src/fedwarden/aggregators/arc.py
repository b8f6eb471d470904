"""A wrapper that shortens the longest updates before another rule sees them (ARC)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core.registry import register
from ..core.stats import Norms, Weights, shrink
from ..core.types import Aggregate, Cohort, Server, State
from ..updates.formed import Mixed
from .common import inner


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


@register(
    "aggregator",
    "arc",
    exempt={
        "translation": "lengths are taken from zero",
        "near-agreement": "lengths are taken from zero",
    },
)
@dataclass(frozen=True)
class ARC:
    """Another rule on updates of which the longest are shortened; ``f`` by default the most that it tolerates.

    By default the shortened updates are mixed with their nearest neighbours, and those averaged by a trimmed mean.
    """

    f: int | None = None
    then: Any = "nearest_neighbour_mixing"

    def equip(self, server: Server) -> ARC:
        return replace(self, then=inner(self.then).equip(server))

    @property
    def pairs(self) -> bool:
        return inner(self.then).pairs

    def init(self) -> State:
        return inner(self.then).init()

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        keep = np.flatnonzero(weights > 0)
        kept = cohort.select(keep.tolist())
        factors = arc_factors(kept.updates.lengths(), (len(kept) - 1) // 2 if self.f is None else self.f)
        clipped = replace(kept, updates=Mixed(kept.updates, np.diag(factors)))
        state, result = inner(self.then).step(state, clipped, weights[keep])
        return state, Aggregate(result.update)  # no mean of what the clients sent, so that it has no weights
