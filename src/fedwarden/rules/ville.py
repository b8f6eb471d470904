"""A fixed threshold for evidence that is the logarithm of a capital."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core.registry import register
from ..core.stats import Scores
from ..core.types import Verdict


def ville_threshold(alpha: float) -> float:
    """What the log of a capital that starts at 1 and does not grow on average ever exceeds with probability alpha.

        tau = log(1 / alpha)

    Ville, Etude critique de la notion de collectif (1939). Of n clients, with the share p_i of the level in the score,
    log(p_i K_i), some p_i K_i ever exceeds 1 / alpha with probability at most alpha, since the shares add up to 1.

    >>> round(ville_threshold(0.05), 3)
    2.996
    """
    return -math.log(alpha)


SAME = "the threshold is a level of evidence, the same whoever else is judged"


@register("rule", "ville", exempt=dict.fromkeys(("equal-scores", "translation", "scaling", "outlier"), SAME))
@dataclass(frozen=True)
class Ville:
    """Flag evidence, the log of a capital, that reaches the log of 1 / ``alpha``: for the history ``capital``."""

    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha lies in (0, 1); got {self.alpha}")

    def __call__(self, scores: Scores, test: int) -> Verdict:
        threshold = ville_threshold(self.alpha) if len(scores) else math.inf
        return Verdict(scores > threshold, threshold)
