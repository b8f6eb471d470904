"""Values as robust z-scores of their round, without a memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.registry import register
from ..core.stats import Mask, Scores, robust_z
from ..core.types import Ids, State


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
