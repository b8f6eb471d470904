"""Running values over many clients, each seen a few times, that a round is compared with.

If clients hardly ever return, there is no evidence about them, and the few others of one round do not show what is
normal: if a tenth of all clients are attackers, they fill half of the round or more in 2 of 1,500 rounds of ten. The
last 500 or so updates do show it. Each value moves by a bounded step per round, so no single round can set it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..core.stats import Norms, Scores

WINDOW = 500  # updates that the running values are about
EARLIEST = 100  # updates before the first comparison
VISITS = 5.0  # updates of a client per WINDOW; with fewer it is seldom seen
STEP = 1.0  # largest difference of log lengths, of a round and carried, that counts


def follow(carried: float, now: float, rate: float, most: float) -> float:
    """The carried value after a round with the value ``now``: a running mean with bounded steps.

        c + rate * clip(now - c, -most, most)

    >>> follow(1.0, 1.5, rate=0.1, most=1.0), follow(1.0, 1e9, rate=0.1, most=1.0)
    (1.05, 1.1)
    """
    return carried + rate * min(max(now - carried, -most), most)


@dataclass(frozen=True)
class Population:
    """The running values after ``updates`` in ``rounds``.

    ``length`` is the log of the median length of trusted clients' updates, ``fresh`` the share of newcomers. A round of
    n clients has weight n / 500 and moves ``length`` by at most that: 500 updates, all from attackers, raise the median
    length by at most a factor of e.
    """

    rounds: int = 0
    updates: int = 0
    length: float | None = None
    fresh: float = 1.0

    def few(self, visits: Scores) -> bool:
        """Whether most clients of a round, by their earlier ``visits``, are seen too seldom to be judged one by one.

        The lower median client sends fewer than 5 of 500 updates and took part in less than half of the rounds. So
        there are more than a hundred clients, and a round has less than half of them.

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
        """The same with the lengths of the last round's trusted updates."""
        n, logs = len(lengths), np.log(lengths[lengths > 0])
        if not len(logs):
            return self
        now, rate = float(np.median(logs)), n / min(WINDOW, max(self.updates, n))
        return replace(self, length=now if self.length is None else follow(self.length, now, rate, STEP))
