"""What many clients, each seen a few times, did lately: a few numbers that a round is held against.

Where a round's clients hardly ever come back, no evidence gathers, and nine others of one round are no measure of what
is normal: of 1,500 rounds of ten, attackers that are a tenth of all clients fill two. What the last some 500 updates
did is one. Each number moves by a bounded step a round, so that such a round cannot set it, and follows what changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..core.stats import Norms, Scores

WINDOW = 500  # updates that the numbers are about
EARLIEST = 100  # updates before which a round is not held against them
VISITS = 5.0  # of a client among the last WINDOW updates; fewer are few
STEP = 1.0  # by which the log length of one round counts as off what is carried, at most


def follow(carried: float, now: float, rate: float, most: float) -> float:
    """A carried number after a round that says another one: a running mean of which each step is bounded.

        c + rate * clip(now - c, -most, most)

    >>> follow(1.0, 1.5, rate=0.1, most=1.0), follow(1.0, 1e9, rate=0.1, most=1.0)
    (1.05, 1.1)
    """
    return carried + rate * min(max(now - carried, -most), most)


@dataclass(frozen=True)
class Population:
    """What is carried of ``updates`` in ``rounds``.

    ``length`` is the log of the median length, and ``fresh`` the share of newcomers. It follows the clients that define
    what is normal; a round of n counts n / 500, and in logs at most that: all 500 updates of attackers raise the length
    by a factor of e.
    """

    rounds: int = 0
    updates: int = 0
    length: float | None = None
    fresh: float = 1.0

    def few(self, visits: Scores) -> bool:
        """Whether most clients of a round, by their earlier ``visits``, come too seldom to be known one by one.

        The lower median client is expected fewer than 5 times among 500 updates, and took part in less than half of the
        rounds: it is one of more than a hundred, and a round holds less than half of them.

        >>> carried = Population(rounds=50, updates=500)
        >>> [carried.few(np.full(10, visits)) for visits in (1.0, 5.0)]  # 10 of 500, 10 of 100
        [True, False]
        """
        usual = float(np.quantile(visits, 0.5, method="lower")) if len(visits) else math.inf
        return self.updates >= EARLIEST and usual < min(self.rounds / 2, VISITS * self.updates / WINDOW)

    @property
    def middle(self) -> float:
        """The median length."""
        return math.inf if self.length is None else math.exp(self.length)

    def after(self, n: int, fresh: float) -> Population:
        """The same after a round of n clients, of which a share was ``fresh``."""
        updates = self.updates + n
        share = follow(self.fresh, fresh, n / min(WINDOW, max(updates, 1)), 1.0)
        return replace(self, rounds=self.rounds + 1, updates=updates, fresh=share)

    def measuring(self, lengths: Norms) -> Population:
        """The same with the lengths of the last round's updates that define what is normal."""
        n, logs = len(lengths), np.log(lengths[lengths > 0])
        if not len(logs):
            return self
        now, rate = float(np.median(logs)), n / min(WINDOW, max(self.updates, n))
        return replace(self, length=now if self.length is None else follow(self.length, now, rate, STEP))
