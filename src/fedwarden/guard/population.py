"""What many clients, each seen a few times, did lately: a few numbers that a round is held against.

Where a round's clients hardly ever come back, no evidence gathers, and nine others of one round are no measure of what
is normal: of 1,500 rounds of ten, attackers that are a tenth of all clients fill two. What the last some 500 updates
did is one. Each number moves by a bounded step a round, so that such a round cannot set it, and follows what changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.seeds import numpy_rng
from ..core.stats import Mask, Norms, Scores
from ..updates.sketch import hashing
from ..updates.updates import Updates

WINDOW = 500  # updates that the numbers are about
EARLIEST = 100  # updates before which a round is not held against them
VISITS = 5.0  # of a client among the last WINDOW updates; fewer are few
STEPS = (1.0, 0.5)  # by which a log length, and a cosine, of one round counts as off what is carried, at most
SIZE = 2048  # entries of the sketch of a direction: cosines are off by .02, those of honest clients spread by .1
SPREADS = 3.0  # upper quartiles below the median: beyond lie 2 % of a normal population, 4 % of phones measured
Aims = tuple[NDArray[np.float64], Scores]
"""Directions of updates as sketches, a row each, and their cosines to the carried one."""


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

    ``length`` is the log of the median length, and ``fresh`` the share of newcomers. Of ``aimed`` updates there is a
    mean ``direction`` too, as a sketch that hangs on the guard's secret, and the median and upper quartile ``cosines``
    to it. It follows the clients that define what is normal; a round of n counts n / 500, and in logs at most that: all
    500 updates of attackers raise the length by a factor of e.
    """

    rounds: int = 0
    updates: int = 0
    length: float | None = None
    fresh: float = 1.0
    aimed: int = 0
    direction: tuple[float, ...] = ()
    cosines: tuple[float, ...] = ()

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {**vars(self), "direction": [*self.direction], "cosines": [*self.cosines]}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Population:
        """What a checkpoint has of it."""
        known: dict[str, Any] = {**state, "direction": (*state["direction"],), "cosines": (*state["cosines"],)}
        return cls(**known)

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

    def aims(self, updates: Updates, secret: int) -> Aims:
        """The directions of updates as sketches of length 1 (n, k), and their cosines to the carried one."""
        sketches = updates.sketch(hashing(updates.d, numpy_rng(secret, "population"), SIZE)).double().cpu().numpy()
        lengths = np.linalg.norm(sketches, axis=1, keepdims=True)
        units = sketches / np.where(lengths > 0, lengths, 1.0)
        mean = np.array(self.direction)
        size = float(np.linalg.norm(mean)) if len(mean) == units.shape[1] else 0.0
        return units, units @ mean / size if size > 0 else np.zeros(len(units))

    def away(self, cosines: Scores) -> Mask:
        """The updates that point back from where the population goes, and farther than its own spread explains.

            cos_i < min(0, median - 3 (upper quartile - median))

        The spread is that of the upper half, which attackers that point back do not reach.

        >>> Population(aimed=500, cosines=(0.1, 0.2)).away(np.array([0.3, -0.1, -0.3])).tolist()
        [False, False, True]
        """
        middle, upper = self.cosines or (0.0, 0.0)
        least = min(0.0, middle - SPREADS * (upper - middle))
        return np.asarray((cosines < least) & (self.aimed >= EARLIEST))

    def after(self, n: int, fresh: float) -> Population:
        """The same after a round of n clients, of which a share was ``fresh``."""
        updates = self.updates + n
        share = follow(self.fresh, fresh, n / min(WINDOW, max(updates, 1)), 1.0)
        return replace(self, rounds=self.rounds + 1, updates=updates, fresh=share)

    def measuring(self, lengths: Norms, aims: Aims | None = None) -> Population:
        """The same with what the updates of the last round were that define what is normal."""
        n, logs = len(lengths), np.log(lengths[lengths > 0])
        if not len(logs):
            return self
        now, rate = float(np.median(logs)), n / min(WINDOW, max(self.updates, n))
        found = replace(self, length=now if self.length is None else follow(self.length, now, rate, STEPS[0]))
        if aims is None:
            return found
        units, cosines = aims
        mean, quartiles = units.mean(axis=0), np.quantile(cosines, (0.5, 0.75)).tolist()
        rate, first = n / min(WINDOW, self.aimed + n), not self.aimed or len(self.direction) != len(mean)
        old = mean if first else np.array(self.direction)
        before = self.cosines or quartiles  # of the first round there are none: it had no direction before it
        middle, upper = (follow(c, q, rate, STEPS[1]) for c, q in zip(before, quartiles, strict=True))
        aimed, direction = n if first else self.aimed + n, tuple((old + rate * (mean - old)).tolist())
        return replace(found, aimed=aimed, direction=direction, cosines=() if first else (middle, upper))
