"""Evidence that a client is farther out than honest differences explain, gathered over the rounds it took part in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from ..core.registry import register
from ..core.stats import Mask, Scores


class Memory(NamedTuple):
    """What is remembered of a client: its evidence, the mean of its values, and over how many rounds."""

    evidence: float = 0.0
    mean: float = 0.0
    rounds: int = 0


BLANK = Memory()


def lower_spread(means: Scores) -> float:
    """Root mean square of the deviations below the median: the half that attackers, who lie high, do not reach.

    >>> lower_spread(np.array([-2.0, -2.0, 0.0, 50.0, 90.0]))  # median 0; deviations 2, 2 and 0
    1.632993161855452
    """
    below = np.minimum(means - np.median(means), 0.0)
    return float(np.sqrt(np.square(below).sum() / ((len(means) + 1) // 2)))  # as many lie at or below the median


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


def gather(evidence: Scores, values: Scores, allowed: float) -> Scores:
    """A one-sided cumulative sum of what exceeds the allowance, in units of it; one round adds at most 1.

        e_t = max(0, e_{t-1} + min(l_t / a_t - 1, 1))

    Page (1954), with the increments clipped so that a single bad round does not decide.

    >>> gather(np.array([0.0, 1.0, 0.0]), np.array([0.6, 0.2, 9.0]), allowed=0.4).round(6).tolist()
    [0.5, 0.5, 1.0]
    """
    return np.maximum(0.0, evidence + np.minimum(values / allowed - 1.0, 1.0))


@register("history", "evidence")
@dataclass(frozen=True)
class Evidence:
    """Cumulative evidence beyond an effect size and beyond the cohort's own heterogeneity.

    ``effect`` is in the signal's own units; the default is 1.7 times as far as the median, in logs.
    """

    alpha: float = 0.05
    effect: float = math.log(1.7)

    def __post_init__(self) -> None:
        if not (0 < self.alpha < 1 and self.effect > 0):
            raise ValueError(f"needs 0 < alpha < 1 and effect > 0; got {self}")

    def init(self) -> Mapping[str, Any]:
        return {}

    def step(
        self, state: Mapping[str, Any], client_ids: tuple[str, ...], values: Scores, trusted: Mask | None = None
    ) -> tuple[Mapping[str, Any], Scores]:
        if not len(values):
            return state, values
        past = zip(*(state.get(c, BLANK) for c in client_ids), strict=True)
        evidence, means, rounds = map(np.array, past)
        # one wild round must not stretch a client's mean, nor through it what the cohort is allowed
        means = means + (np.clip(values, -1.0, 1.0) - means) / (rounds + 1)
        reference = means if trusted is None or not trusted.any() else means[trusted]
        scores = gather(evidence, values, allowance(reference, self.alpha, self.effect))
        now = map(Memory._make, zip(scores.tolist(), means.tolist(), (rounds + 1).tolist(), strict=True))
        return {**state, **dict(zip(client_ids, now, strict=True))}, scores
