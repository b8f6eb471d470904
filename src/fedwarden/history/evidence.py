"""Evidence that a client is farther out than honest differences explain, gathered over the rounds it took part in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from ..core.registry import register
from ..core.remembered import Remembered
from ..core.stats import Mask, Scores
from ..core.types import Ids, State

BLANK = (0.0, 0.0, 0.0)  # of a new client: its evidence, the mean of its recent values, and of how many rounds
RECENT = 10  # rounds that a client's mean is about


def lower_spread(means: Scores) -> float:
    """Root mean square of the deviations below the median: the half that attackers, who lie high, do not reach.

    >>> lower_spread(np.array([-2.0, -2.0, 0.0, 50.0, 90.0]))  # median 0; deviations 2, 2 and 0
    1.632993161855452
    """
    below = np.minimum(means - np.median(means), 0.0)
    return math.sqrt(below.dot(below) / ((len(means) + 1) // 2))  # as many lie at or below the median


def allowance(means: Scores, alpha: float, effect: float) -> float:
    """How far out an honest client of this cohort may be expected to lie.

        a = max(effect, t s),   t = t_{1 - alpha/n, n/2},   s = lower spread of the clients' mean values

    The first is an effect size: less is not worth an exclusion. The second follows the cohort's own heterogeneity, at a
    level shared by its n clients; s rests on half of them, hence n/2 degrees of freedom.

    >>> allowance(np.zeros(10), alpha=0.05, effect=0.4)
    0.4
    """
    n = len(means)
    return max(effect, -float(stdtrit(max(n / 2, 1.0), alpha / n)) * lower_spread(means))


def gather(evidence: Scores, excess: Scores, forget: float) -> Scores:
    """A one-sided cumulative sum of the excess over 1; one round adds at most 1 and takes off at most ``forget``.

        e_t = max(0, e_{t-1} + min(max(x_t - 1, -forget), 1)),   x_t = l_t / a_t

    Page (1954). Differs from the paper: a single bad round does not decide, and a good one does not undo it, so that a
    client cannot attack and behave in turn for ever.

    >>> gather(np.array([0.0, 1.0, 0.0]), np.array([1.5, 0.5, 9.0]), forget=0.25).tolist()
    [0.5, 0.75, 1.0]
    """
    return np.maximum(0.0, evidence + np.clip(excess - 1.0, -forget, 1.0))


def update_means(means: Scores, rounds: Scores, values: Scores) -> Scores:
    """The mean of each client's values, each cut to [-1, 1]; after ten rounds the older ones fade.

        m_t = m_{t-1} + (clip(l_t, -1, 1) - m_{t-1}) / min(t, 10)

    One wild round must not stretch a client's mean, nor through it what the cohort is allowed. Clients grow apart, and
    together again, while they train: what they are allowed must follow.

    >>> update_means(np.array([0.0, 0.5]), np.array([0.0, 30.0]), np.array([9.0, -0.5])).tolist()
    [1.0, 0.4]
    """
    return np.asarray(means + (np.clip(values, -1.0, 1.0) - means) / np.minimum(rounds + 1, RECENT), dtype=np.float64)


@register("history", "evidence")
@dataclass(frozen=True)
class Evidence:
    """Cumulative evidence beyond an effect size and beyond the cohort's own heterogeneity.

    ``effect`` is in the signal's own units; the default is 1.7 times as far as the median, in logs. A good round takes
    off at most ``forget`` of what a bad one can add.
    """

    alpha: float = 0.05
    effect: float = math.log(1.7)
    forget: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.alpha < 1 and self.effect > 0 and self.forget >= 0):
            raise ValueError(f"needs 0 < alpha < 1, effect > 0 and forget >= 0; got {self}")

    def step(self, state: State, client_ids: Ids, values: Scores, trusted: Mask | None = None) -> tuple[State, Scores]:
        if not len(values):
            return state, values
        known = Remembered.of(state)
        evidence, means, rounds = known.columns(client_ids, BLANK)
        means = update_means(means, rounds, values)
        reference = means if trusted is None else means[trusted]
        allowed = allowance(reference if len(reference) else means, self.alpha, self.effect)
        scores = gather(evidence, values / allowed, self.forget)
        return known.updated(client_ids, [scores, means, rounds + 1]), scores


@register("history", "gathered")
@dataclass(frozen=True)
class Gathered:
    """The sum of a client's values: one round adds at most 1, takes off at most ``forget``, and never goes below 0."""

    forget: float = 0.5

    def __post_init__(self) -> None:
        if not self.forget >= 0:
            raise ValueError(f"forget is at least 0; got {self.forget}")

    def step(self, state: State, client_ids: Ids, values: Scores, trusted: Mask | None = None) -> tuple[State, Scores]:
        if not len(values):
            return state, values
        known = Remembered.of(state)
        scores = gather(known.columns(client_ids, (0.0,))[0], values + 1.0, self.forget)
        return known.updated(client_ids, [scores]), scores
