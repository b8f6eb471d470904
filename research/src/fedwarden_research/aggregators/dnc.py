"""Clients that stand out along the main direction of random coordinates are left out (Divide-and-Conquer)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from fedwarden.aggregators.common import among, some_columns, tolerated
from fedwarden.core.registry import register
from fedwarden.core.seeds import numpy_rng
from fedwarden.core.stats import Scores, Weights
from fedwarden.core.types import Aggregate, Cohort, State
from fedwarden.updates.updates import Updates


def outlier_scores(rows: NDArray[np.float64]) -> Scores:
    """The squared projection of every centred row on the top right singular vector of the centred rows.

        s_i = (v (x_i - mu))^2

    Shejwalkar and Houmansadr, Manipulating the Byzantine (2021), algorithm 2. By the (n, n) inner products.

    >>> outlier_scores(np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 0.0]])).round(6).tolist()
    [1.0, 4.0, 1.0]
    """
    centred = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    return np.asarray(max(values[-1], 0.0) * vectors[:, -1] ** 2, dtype=np.float64)


def kept_by_all(samples: Sequence[NDArray[np.float64]], f: int, c: float) -> NDArray[np.int64]:
    """The clients that are never among the c f highest scores, whichever coordinates are looked at.

    Shejwalkar and Houmansadr (2021), algorithm 2; each sample has some coordinates of all clients. Where c f is no
    whole number, it is rounded up.

    >>> one, other = np.array([[0.0], [1.0], [2.0], [9.0], [1.0]]), np.array([[7.0], [1.0], [0.0], [1.0], [2.0]])
    >>> kept_by_all([one, other], f=1, c=1.0).tolist()
    [1, 2, 4]
    """
    n = len(samples[0])
    out = ceil(round(c * f, 9))
    if not 0 <= 2 * f < n or not 0 <= out < n:
        raise ValueError(f"dnc needs n > 2f clients, f >= 0 and 0 <= c f < n; got n={n}, f={f}, c={c}")
    kept = np.arange(n)
    for rows in samples:
        kept = np.intersect1d(kept, np.argsort(outlier_scores(rows), kind="stable")[: n - out])
    if not len(kept):
        raise ValueError(
            f"dnc keeps no client: in {len(samples)} draws each of n={n} clients was once among the {out} "
            f"left out; give a smaller f or c, or fewer steps"
        )
    return kept


@register("aggregator", "dnc")
@dataclass(frozen=True)
class DnC:
    """The mean without the clients that stand out in one of several samples of coordinates (Divide-and-Conquer).

    In each of ``steps`` draws of ``sample`` coordinates ``c`` times ``f`` clients are left out; f is by default a fifth
    of the clients. An attacker that knows the ``seed`` knows the coordinates: outside a simulation, give one that is
    secret.
    """

    f: int | None = None
    c: float = 1.0
    sample: int = 10_000
    steps: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sample < 1 or self.steps < 1:
            raise ValueError(f"dnc needs a coordinate and a step or more; got sample={self.sample}, steps={self.steps}")

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        rng = numpy_rng(self.seed, "dnc", cohort.round)

        def rule(kept: Updates) -> Aggregate:
            drawn = [kept.sample(some_columns(kept, self.sample, rng)).double() for _ in range(self.steps)]
            f = tolerated(cohort, self.f, (len(kept) - 1) // 2, max(1, len(kept) // 5))
            shares = np.zeros(len(kept))
            shares[kept_by_all([rows.cpu().numpy() for rows in drawn], f, self.c)] = 1.0
            shares /= shares.sum()
            return Aggregate(kept.weighted_sum(shares), shares)

        return state, among(cohort.updates, weights, rule)
