"""A trimmed mean or a median that also counts copies of the update farthest from both extremes (FoundationFL)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedwarden.aggregators.common import among, tolerated
from fedwarden.core.registry import register
from fedwarden.core.stats import Norms, Weights
from fedwarden.core.types import Aggregate, Cohort, State
from fedwarden.updates.ranks import middle
from fedwarden.updates.updates import Updates


def from_extremes(updates: Updates) -> Norms:
    """How far every update is from the nearer of two extremes, the largest and the smallest value of each coordinate.

        s_i = min(||x_i - max||, ||x_i - min||),   max[k] = max_j x_j[k],   min[k] = min_j x_j[k]

    Fang et al., Do We Really Need to Design New Byzantine-robust Aggregation Rules? (NDSS 2025), equations 2 to 4.

    >>> from_extremes(Updates.of(np.array([[0.0], [4.0], [9.0]]))).tolist()
    [0.0, 4.0, 0.0]
    """
    squares = torch.zeros(2, len(updates), dtype=torch.float64, device=updates.device)
    for _, _, block in updates.blocks(measured_only=True):
        exact = block.double()  # beside one huge update, float32 would not tell the others apart
        for total, extreme in zip(squares, (exact.amax(dim=0), exact.amin(dim=0)), strict=True):
            total += (exact - extreme).square().sum(dim=1)
    return np.asarray(squares.amin(dim=0).sqrt().cpu().numpy(), dtype=np.float64)


def foundationfl(updates: Updates, m: int, b: int | None) -> Aggregate:
    """Add m copies of the update farthest from the extremes; then a trimmed mean, or a median where b is None.

        i* = argmax_i s_i;   u[k] = trimmed mean or median of x_1[k], ..., x_n[k] and m times x_i*[k]

    Fang et al. (2025), equations 5 to 7; b is their c. Differs from the paper: two updates are refused. Both are
    equally far from the extremes, and their order would decide.

    >>> rows = Updates.of(np.array([[0.0], [1.0], [4.0], [9.0]]))
    >>> foundationfl(rows, m=2, b=1).update.tolist()  # of 0, 1, 4, 4, 4, 9
    [3.25]
    >>> foundationfl(rows, m=2, b=None).update.tolist()
    [4.0]
    """
    n = len(updates)
    if n < 3 or m < 0:
        raise ValueError(f"foundationfl needs n >= 3 clients and m >= 0 copies; got n={n}, m={m}")
    if b is not None and not 0 <= 2 * b < n + m:
        raise ValueError(f"foundationfl needs n + m > 2b updates and b >= 0; got n={n}, m={m}, b={b}")
    chosen = int(np.argmax(from_extremes(updates)))
    more = updates.select([*range(n), *[chosen] * m])
    return Aggregate(more.ranked_mean(*(middle(n + m) if b is None else (b, n + m - b))))


@register(
    "aggregator",
    "foundationfl",
    exempt={"defaults": "a client far out in some coordinates is farthest from both extremes, and is copied"},
)
@dataclass(frozen=True)
class FoundationFL:
    """A trimmed mean or median over the updates and ``m`` copies of the one farthest from both extremes.

    ``then`` is "trimmed_mean", which drops the ``b`` largest and smallest values, or "median". By default there are
    n / 2 copies, as in the paper, and b is a fifth of the clients. A minority that reverses its updates turns the
    result, and one client far out, with signs that change, moves it without bound: it is farthest from both extremes,
    and is copied.
    """

    m: int | None = None
    b: int | None = None
    then: str = "trimmed_mean"

    def __post_init__(self) -> None:
        if self.then not in ("trimmed_mean", "median"):
            raise ValueError(f"then is 'trimmed_mean' or 'median'; got {self.then!r}")

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        def rule(kept: Updates) -> Aggregate:
            n = len(kept)
            m = n // 2 if self.m is None else self.m
            b = tolerated(cohort, self.b, (n + m - 1) // 2, max(1, n // 5))
            return foundationfl(kept, m, b if self.then == "trimmed_mean" else None)

        return state, among(cohort.updates, weights, rule)
