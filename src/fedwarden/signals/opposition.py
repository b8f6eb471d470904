"""Clients on the other side of what the cohort agrees on, however small the agreement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.registry import register
from ..core.stats import Mask, Scores
from ..core.types import Cohort, Reading
from ..updates.gram import largest, off_diagonal

AGREED = 0.55  # of the most that clients can agree: honest ones that differ stay below, see docs/guard.md
ORTHOGONAL = 0.25  # of a turn to the other side that is no evidence: updates at right angles to the others
FADING = 0.03  # evidence that a round takes back in which the clients agree on nothing
FEW = 3  # trusted clients, fewer have no sides


def sides(similarity: NDArray[np.float64], trusted: Mask) -> tuple[Scores, float]:
    """On which side of the cohort's main disagreement each client stands, and how much the cohort agrees.

        S_ij = clip(c_ij / median |c|, -1, 1), 0 for i = j;   S v = lambda v with the largest lambda
        agreement = lambda / (n - 1);   r_i = sqrt(n) (S v)_i / lambda, most trusted clients on the positive side

    Over trusted clients; others are placed by their own row of S. Signs rather than cosines: whoever colludes has
    cosines of 1, and must not weigh more for it. If all agree but for some that send the opposite, r is 1 and -1.

    >>> s = np.array([1.0, 1.0, 1.0, -1.0])
    >>> side, agreement = sides(0.02 * np.outer(s, s), np.ones(4, bool))
    >>> side.round(6).tolist(), round(agreement, 6)
    ([1.0, 1.0, 1.0, -1.0], 1.0)
    """
    n = int(trusted.sum())
    inside = np.flatnonzero(trusted) if n < len(trusted) else slice(None)
    unit = float(np.median(np.abs(off_diagonal(similarity[inside][:, inside])))) if n >= FEW else 0.0
    if not unit > 0:
        return np.ones(len(similarity)), 0.0
    signs = np.clip(similarity / unit, -1.0, 1.0)
    np.fill_diagonal(signs, 0.0)
    to_inside = signs[:, inside]
    values, vectors = largest(to_inside[inside], 1, np.ones(n))
    top, v = float(values[-1]), vectors[:, -1]
    v = v if 2 * (v > 0).sum() >= n else -v
    return np.asarray(math.sqrt(n) * to_inside @ v / top, dtype=np.float64), top / (n - 1)


def informative(agreement: float, n: int) -> bool:
    """Whether n clients agree on enough for a side to mean something.

        lambda / (n - 1) > max(0.55, 2 sqrt(n) / (n - 1))

    2 sqrt(n) is the edge of Wigner's semicircle: what the largest eigenvalue of random signs reaches by chance.

    >>> informative(0.6, 20), informative(0.6, 10)
    (True, False)
    """
    return n >= FEW and agreement > max(AGREED, 2 * math.sqrt(n) / (n - 1))


def at_rest(cosines: NDArray[np.float64], trusted: Mask, ages: Scores) -> Mask:
    """Fast clients that point away from the others by no more than clients of a model that has come to rest do.

        sum_j cos(x_i, x_j) > 0,   a_i < mean a,   j = i included, over trusted clients

    At rest the updates add up to zero, so that n equal ones have cosines of -1 / (n - 1) on average. From the data of a
    fast client, whose updates are few rounds old, an asynchronous model learns more than from the others': its updates
    point away from theirs while these still agree.

    >>> cosines = np.array([[1.0, -0.1, -0.1], [-0.1, 1.0, 0.3], [-0.1, 0.3, 1.0]])
    >>> at_rest(cosines, np.ones(3, bool), np.array([0.0, 3.0, 3.0])).tolist()
    [True, False, False]
    """
    return np.asarray(trusted & (cosines[:, trusted].sum(axis=1) > 0) & (ages < ages[trusted].mean()), dtype=bool)


@register("signal", "opposition")
@dataclass(frozen=True)
class Opposition:
    """Evidence of one round that an update points away from what the cohort agrees on.

    1 is a client that sends the opposite of the others, -1 one that agrees with them; a quarter is taken off, so that
    a client at right angles to the others gathers no evidence. Where the cohort agrees on too little to tell, each
    client has a little less than 0, and so has a fast client of an asynchronous model :func:`at_rest`. The fact
    ``agreement`` of a round is the share of it less 1/n: few clients agree more by chance. A minority on the other side
    does not move the sides, and without it the rest may be too few to have any: so a round is measured once.
    """

    words: ClassVar[str] = "its updates point away from the others'"
    weights_only: ClassVar[bool] = True
    pairs: ClassVar[bool] = True

    def __call__(self, cohort: Cohort) -> Reading:
        trusted = cohort.reference
        cosines = cohort.updates.compared().cosines()
        side, agreement = sides(cosines, trusted)
        n = int(trusted.sum())
        facts = {"agreement": agreement - 1 / max(n, 1)}
        found = -side - ORTHOGONAL if informative(agreement, n) else np.full(len(side), -FADING)
        found[(found > 0) & at_rest(cosines, trusted, cohort.ages)] = -FADING
        return Reading(np.asarray(found, dtype=np.float64), facts=facts)
