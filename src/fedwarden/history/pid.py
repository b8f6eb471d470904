"""The PID controller over a client's distances: what it does now, what it has done, and how that changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..core.registry import register
from ..core.remembered import Remembered
from ..core.stats import Mask, Scores
from ..core.types import Ids, State

BLANK = (0.0, 0.0, 0.0)  # of a new client: the sum of its values, the last one, and over how many rounds


def pid(
    values: Scores, totals: Scores, lasts: Scores, rounds: Scores, kp: float, ki: float, kd: float, integral: str
) -> Scores:
    """Proportional, integral and derivative terms of each client's distance, added up.

        u_t = K_P D_t + K_I I_t + K_D (D_t - D_{t-1});   u = K_P D in a client's first round
        I_t = sum_{x<t} D_x ("sum"),  that divided by the rounds seen ("mean"),  or its z-score ("standardised")

    PID-MADE, eq. 2. Differs from the paper: "mean" and "standardised", which compare clients that took part in
    different numbers of rounds.

    >>> one = np.ones(1)
    >>> pid(3 * one, 5 * one, 2 * one, 2 * one, kp=1.0, ki=0.5, kd=0.05, integral="sum").tolist()
    [5.55]
    """
    seen = rounds > 0
    sums = np.where(seen, totals, 0.0)
    if integral == "mean":
        sums = sums / np.maximum(rounds, 1)
    elif integral == "standardised":
        spread = sums[seen].std() if seen.any() else 0.0
        sums = (sums - sums[seen].mean()) / spread if spread > 0 else np.zeros_like(sums)
    past = ki * sums + kd * (values - lasts)
    return np.asarray(kp * values + np.where(seen, past, 0.0), dtype=np.float64)


@register("history", "pid")
@dataclass(frozen=True)
class PID:
    """Proportional, integral and derivative terms of each client's score over the rounds it took part in."""

    kp: float = 1.0
    ki: float = 0.5
    kd: float = 0.05
    integral: Literal["sum", "mean", "standardised"] = "sum"

    def __post_init__(self) -> None:
        if self.integral not in ("sum", "mean", "standardised"):
            raise ValueError(f"integral is 'sum', 'mean' or 'standardised'; got {self.integral!r}")

    def step(self, state: State, client_ids: Ids, values: Scores, trusted: Mask | None = None) -> tuple[State, Scores]:
        if not len(values):
            return state, values
        known = Remembered.of(state)
        totals, lasts, rounds = known.columns(client_ids, BLANK)
        scores = pid(values, totals, lasts, rounds, self.kp, self.ki, self.kd, self.integral)
        return known.updated(client_ids, [totals + values, values, rounds + 1]), scores
