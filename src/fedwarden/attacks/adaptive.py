"""An attacker that knows the guard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from ..core.registry import register
from . import Knowledge, View


def largest(passes: Callable[[float], bool], limit: float, steps: int) -> float:
    """The largest value up to a limit that passes, to limit / 2^steps, by bisection; 0 is taken to pass.

    >>> largest(lambda x: x <= 3.0, limit=8.0, steps=3)
    3.0
    """
    if passes(limit):
        return limit
    low, high = 0.0, limit
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low


@register("attack", "adaptive")
@dataclass(frozen=True)
class Adaptive:
    """Asks the guard first: what each trained, pushed against the honest mean as far as none of them would be flagged.

    u_i = x_i - g mu with the largest g up to ``limit``: every attacker keeps its own noise, so that no two are alike.
    It looks no further than the round.
    """

    limit: float = 10.0
    steps: int = 10
    knowledge: ClassVar[Knowledge] = "all"

    def __post_init__(self) -> None:
        if not self.limit > 0 or self.steps < 1:
            raise ValueError(f"limit must be positive and steps at least 1; got {self.limit} and {self.steps}")

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        mean, accepts = view.honest.mean(dim=0), view.accepts

        def pushed(g: float) -> Tensor:
            return view.own - g * mean

        if accepts is None:
            return pushed(self.limit)
        return pushed(largest(lambda g: bool(accepts(pushed(g)).all()), self.limit, self.steps))
