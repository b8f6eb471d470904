"""A mean that loses the direction in which the updates vary most, client by client (CAF)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from fedwarden.aggregators.common import among, tolerated
from fedwarden.core.registry import register
from fedwarden.core.stats import Scores, Weights
from fedwarden.core.types import Aggregate, Cohort, State
from fedwarden.updates.gram import centred
from fedwarden.updates.updates import Updates


def principal(products: NDArray[np.float64], shares: Weights) -> tuple[float, Scores]:
    """The largest eigenvalue of the rows' covariance, and how far each row lies along its eigenvector.

        S = sum_i p_i (x_i - mu)(x_i - mu)';   S v = lambda v;   a_i = v (x_i - mu)

    ``products`` are those about the mean, K (:func:`centred`). With D = diag(sqrt(p)), the matrix D K D has the
    eigenvalues of S that are not zero, and its eigenvector w gives a = K D w / sqrt(lambda), up to its sign.

    >>> points = np.array([-1.0, -1.0, 2.0])
    >>> variance, along = principal(np.outer(points, points), np.full(3, 1 / 3))
    >>> round(variance, 6), np.abs(along).round(6).tolist()
    (2.0, [1.0, 1.0, 2.0])
    """
    some = np.flatnonzero(shares)
    roots, last = np.sqrt(shares[some]), len(some) - 1
    (value,), vector = eigh(roots[:, None] * products[np.ix_(some, some)] * roots, subset_by_index=[last, last])
    if not value > 0:
        return 0.0, np.zeros(len(shares))
    along = products[:, some] @ (roots * vector[:, 0]) / np.sqrt(value)
    return float(value), np.asarray(along, dtype=np.float64)


def caf_shares(gram: NDArray[np.float64], f: int) -> Weights:
    """Shares of the clients in the mean about which the updates vary least, of all means that a filter passes through.

        c_i = 1;   while sum_i c_i > n - 2f:   mu, S: mean and covariance with weights c;   S v = lambda v, the largest;
        tau_i = (v (x_i - mu))^2,   c_i <- c_i (1 - tau_i / max_{c_j > 0} tau_j);   u = the mu of the least lambda

    Allouah, Guerraoui and Stephan, Towards Trustworthy Federated Learning with Untrusted Participants (2025), algorithm
    2, the Covariance bound-Agnostic Filter. The eigenvector is exact, by the inner products. Clients whose weight is 0
    are left out of the maximum, so that every step takes out one client more: with them, a far client that is out
    already would hold the others' weights where they are.

    >>> points = np.array([-1.0, 0.0, 0.0, 0.0, 6.0])  # mean 1, tau = 4, 1, 1, 1, 25; so 25 c = 21, 24, 24, 24, 0
    >>> (93 * caf_shares(np.outer(points, points), f=1)).round(6).tolist()
    [21.0, 24.0, 24.0, 24.0, 0.0]
    """
    n = len(gram)
    if not 0 <= 2 * f < n:
        raise ValueError(f"caf needs n > 2f clients and f >= 0; got n={n}, f={f}")
    counts = np.ones(n)
    best, least = counts / n, np.inf
    while counts.sum() > n - 2 * f:
        shares = counts / counts.sum()
        variance, along = principal(centred(gram, shares), shares)
        if variance < least:
            best, least = shares, variance
        tau = np.where(counts > 0, along**2, 0.0)
        if not tau.max() > 0:  # those left agree
            break
        counts = counts * (1 - tau / tau.max())
    return best


def caf(updates: Updates, f: int) -> Aggregate:
    """The mean with the shares of :func:`caf_shares`: one Gram matrix, and one weighted sum.

    >>> rows = Updates.of(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]))
    >>> caf(rows, f=1).update.round(decimals=6).tolist()
    [4.0, 5.0, 6.0]
    """
    weights = caf_shares(updates.gram(), f)
    return Aggregate(updates.weighted_sum(weights), weights)


@register("aggregator", "caf")
@dataclass(frozen=True)
class CAF:
    """The mean after a filter on the direction of most variance; ``f`` attackers, by default the most it tolerates."""

    pairs: ClassVar[bool] = True

    f: int | None = None

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        def rule(kept: Updates) -> Aggregate:
            return caf(kept, tolerated(cohort, self.f, (len(kept) - 1) // 2))

        return state, among(cohort.updates, weights, rule)
