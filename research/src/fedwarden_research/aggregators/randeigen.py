"""Clients are left out by chance, the likelier the farther they lie along an estimated main direction (RandEigen)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedwarden.aggregators.common import tolerated, widen
from fedwarden.core.registry import register
from fedwarden.core.seeds import numpy_rng
from fedwarden.core.stats import Scores, Weights
from fedwarden.core.types import Aggregate, Cohort, State
from fedwarden.updates.gram import centred

SETTLED = 1e-5  # relative change of the largest eigenvalue below which the filter stops


def power_iteration(products: NDArray[np.float64], start: Scores, accuracy: float) -> tuple[float, Scores]:
    """An estimate of the largest eigenvalue of the rows' covariance, and each row's place along its eigenvector.

        v_0 = sum_i g_i (x_i - mu);   v <- S v / ||S v||, ceil(log(4n) / (-2 log(1 - accuracy))) times;  lambda = v' S v

    The power method from a random combination of the rows, ``start``, on their inner products about the mean. So many
    steps bring the estimate to within about ``accuracy`` of the eigenvalue, as a part of it.

    >>> points = np.array([-1.0, -1.0, 2.0])
    >>> variance, along = power_iteration(np.outer(points, points), np.array([0.3, -0.2, 0.4]), 0.1)
    >>> round(variance, 6), np.abs(along).round(6).tolist()
    (2.0, [1.0, 1.0, 2.0])
    """
    n = len(products)
    a = start
    for _ in range(ceil(log(4 * n) / (-2 * log(1 - accuracy)))):
        a = products @ a
        length = float(np.linalg.norm(a))
        if not length > 0:
            return 0.0, np.zeros(n)
        a = a / length
    along = products @ a
    square = float(a @ along)  # of the length of v
    if not square > 0:
        return 0.0, np.zeros(n)
    return float(along @ along) / (n * square), np.asarray(along / np.sqrt(square), dtype=np.float64)


def randeigen_kept(
    gram: NDArray[np.float64], f: int, accuracy: float, starts: NDArray[np.float64], draws: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The clients that are left by a filter which takes each out with a probability that grows with its score.

        s_i = |v (x_i - mu)|;   keep i where r_i > s_i / max s,   r_i uniform in [0, 1);   and again, until
        more than (1 - 2f/n) of those left have s_i > max s / 2, or lambda stands still, or fewer than f are left

    Lee, Kolluri, Saxena and Chang, A Practical and Secure Byzantine Robust Aggregator (2025), arXiv 2506.23183, after
    the program that its authors published. ``starts`` and ``draws`` are (n, steps) normal and uniform numbers, a
    column a step. Differs from the program: inner products are exact, where it projects the rows to fewer dimensions
    at random; lambda stands still to 1e-5 of itself, not to 1e-5; nobody is taken out where nobody would be left; and
    n > 3f, since with fewer clients f that agree stop the filter at once.

    >>> points = np.array([0.0, 1.0, 2.0, 1.0, 90.0])
    >>> randeigen_kept(np.outer(points, points), 1, 0.1, np.eye(5)[:, :1], np.full((5, 1), 0.5)).tolist()
    [0, 1, 2, 3]
    """
    n = len(gram)
    if not 0 <= 3 * f < n:
        raise ValueError(f"randeigen needs n > 3f clients and f >= 0; got n={n}, f={f}")
    if not 0 < accuracy < 1:
        raise ValueError(f"randeigen needs an accuracy between 0 and 1; got {accuracy}")
    kept, last = np.arange(n), np.inf
    for t in range(draws.shape[1] if f else 0):
        shares = np.full(len(kept), 1 / len(kept))
        variance, along = power_iteration(centred(gram[np.ix_(kept, kept)], shares), starts[kept, t], accuracy)
        scores = np.abs(along)
        if not variance > 0 or abs(last - variance) < SETTLED * variance or len(kept) < f:
            break
        if (scores > scores.max() / 2).sum() * n > len(kept) * (n - 2 * f):
            break
        left = kept[draws[kept, t] > scores / scores.max()]
        if not len(left):
            break
        kept, last = left, variance
    return kept


@register(
    "aggregator",
    "randeigen",
    exempt={"permutation": "chance goes by client id, and rows alone have none"},
)
@dataclass(frozen=True)
class RandEigen:
    """The mean of the clients that a random filter on the direction of most variance leaves.

    ``f`` attackers, by default a fifth of the clients; with f = 0 it is the mean. At most ``steps`` times, by default
    10 or f. It leaves few clients: about f of those that differ by chance alone. An attacker that knows the
    ``seed`` knows which ones stay: outside a simulation, give one that is secret.
    """

    pairs: ClassVar[bool] = True

    f: int | None = None
    steps: int | None = None
    accuracy: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"randeigen needs a step or more; got steps={self.steps}")

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        keep = np.flatnonzero(weights > 0)
        kept = cohort.select(keep.tolist())
        f = tolerated(cohort, self.f, (len(kept) - 1) // 3, max(1, len(kept) // 5))
        steps = max(f, 10) if self.steps is None else self.steps
        # by id, so that the order in which replies came changes nothing
        chances = [numpy_rng(self.seed, "randeigen", cohort.round, c) for c in kept.client_ids]
        starts, draws = np.array([r.normal(size=steps) for r in chances]), np.array([r.random(steps) for r in chances])
        shares = np.zeros(len(kept))
        shares[randeigen_kept(kept.updates.gram(), f, self.accuracy, starts, draws)] = 1.0
        shares /= shares.sum()
        return state, widen(Aggregate(kept.updates.weighted_sum(shares), shares), keep, len(cohort))
