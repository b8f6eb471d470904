"""Simple memories: none, with values as they are or as z-scores; an average; a cumulative sum of excesses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.registry import register
from ..core.remembered import Remembered
from ..core.stats import Mask, Scores, robust_z
from ..core.types import Ids, State


def ewma(values: Scores, averages: Scores, decay: float) -> Scores:
    """Exponentially weighted average; NaN stands for no past.

        a_t = decay * a_{t-1} + (1 - decay) * x_t,   a_1 = x_1

    Roberts (1959), control charts.

    >>> ewma(np.array([4.0, 4.0]), np.array([2.0, np.nan]), decay=0.75).tolist()
    [2.5, 4.0]
    """
    return np.where(np.isnan(averages), values, decay * averages + (1 - decay) * values)


def cusum(excesses: Scores, sums: Scores, slack: float) -> Scores:
    """One-sided cumulative sum of what exceeds a slack.

        s_t = max(0, s_{t-1} + x_t - slack)

    Page (1954).

    >>> cusum(np.array([3.0, -5.0]), np.array([1.0, 1.0]), slack=1.0).tolist()
    [3.0, 0.0]
    """
    return np.maximum(0.0, sums + excesses - slack)


@register("history", "raw")
@dataclass(frozen=True)
class Raw:
    """No memory: the score is this round's value."""

    def step(self, state: State, client_ids: Ids, values: Scores, trusted: Mask | None = None) -> tuple[State, Scores]:
        return state, values


@register("history", "standard")
@dataclass(frozen=True)
class Standard:
    """The robust z-score of each value among the trusted clients of the round (arXiv 2605.22266)."""

    eps: float = 1e-12

    def step(self, state: State, client_ids: Ids, values: Scores, trusted: Mask | None = None) -> tuple[State, Scores]:
        reference = values if trusted is None or not trusted.any() else values[trusted]
        reference = reference[np.isfinite(reference)]
        if not len(reference):
            return state, values
        return state, robust_z(values, self.eps, reference)


@register("history", "ewma")
@dataclass(frozen=True)
class EWMA:
    """Exponentially weighted average of each client's values."""

    decay: float = 0.7

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay lies in [0, 1); got {self.decay}")

    def step(self, state: State, client_ids: Ids, values: Scores, trusted: Mask | None = None) -> tuple[State, Scores]:
        if not len(values):
            return state, values
        known = Remembered.of(state)
        scores = ewma(values, known.columns(client_ids, (np.nan,))[0], self.decay)
        return known.updated(client_ids, [scores]), scores


@register("history", "cusum")
@dataclass(frozen=True)
class CUSUM:
    """Cumulative sum of each client's robust z-score above a slack: many small excesses become a large one."""

    slack: float = 1.0

    def step(self, state: State, client_ids: Ids, values: Scores, trusted: Mask | None = None) -> tuple[State, Scores]:
        if not len(values):
            return state, values
        known = Remembered.of(state)
        scores = cusum(robust_z(values), known.columns(client_ids, (0.0,))[0], self.slack)
        return known.updated(client_ids, [scores]), scores
