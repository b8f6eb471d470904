"""Values as robust z-scores of their round, without a memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.registry import register
from ..core.stats import Mask, Scores, robust_z


@register("history", "standard")
@dataclass(frozen=True)
class Standard:
    """The robust z-score of each value among the trusted clients of the round (arXiv 2605.22266)."""

    eps: float = 1e-12

    def init(self) -> Mapping[str, Any]:
        return {}

    def step(
        self, state: Mapping[str, Any], client_ids: tuple[str, ...], values: Scores, trusted: Mask | None = None
    ) -> tuple[Mapping[str, Any], Scores]:
        reference = values if trusted is None or not trusted.any() else values[trusted]
        reference = reference[np.isfinite(reference)]
        if not len(reference):
            return state, values
        return state, robust_z(values, self.eps, reference)
