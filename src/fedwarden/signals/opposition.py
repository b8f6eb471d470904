"""Clients on the other side of what the cohort agrees on, however small the agreement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.registry import register
from ..core.stats import Mask, Scores, median
from ..core.types import Cohort, Reading
from ..updates.gram import largest, off_diagonal

AGREED = 0.7  # of the most that n clients can agree; honest clients of one task do so in their first rounds
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
    unit = median(np.abs(off_diagonal(similarity[inside][:, inside]))) if n >= FEW else 0.0
    if not unit > 0:
        return np.ones(len(similarity)), 0.0
    signs = np.clip(similarity / unit, -1.0, 1.0)
    np.fill_diagonal(signs, 0.0)
    to_inside = signs[:, inside]
    values, vectors = largest(to_inside[inside], 1, np.ones(n))
    top, v = float(values[-1]), vectors[:, -1]
    v = v if 2 * (v > 0).sum() >= n else -v
    return np.asarray(math.sqrt(n) * to_inside @ v / top, dtype=np.float64), top / (n - 1)


@register("signal", "opposition")
@dataclass(frozen=True)
class Opposition:
    """How far an update stands on the other side of what the cohort agrees on; 0 for all where it agrees on little.

    1 is a client that has nothing to do with the others, 2 one that sends the opposite. A cohort agrees if the largest
    eigenvalue of its signs is 0.7 of the most that it can be, and above what chance gives: 2 sqrt(n), the edge of
    Wigner's semicircle. Below eight clients that cannot be, so nobody is measured. The fact ``agreement`` of a round is
    the share of it less 1/n: few clients agree more by chance.
    """

    words: ClassVar[str] = "it sends the opposite of what the others send"
    weights_only: ClassVar[bool] = True

    def __call__(self, cohort: Cohort) -> Reading:
        trusted = cohort.reference
        side, agreement = sides(cohort.updates.cosines(), trusted)
        n = int(trusted.sum())
        facts = {"agreement": agreement - 1 / max(n, 1)}
        if not agreement * (n - 1) > max(AGREED * (n - 1), 2 * math.sqrt(n)):
            return Reading(np.zeros(len(side)), facts=facts)
        return Reading(np.asarray(median(side[trusted]) - side, dtype=np.float64), facts=facts)
