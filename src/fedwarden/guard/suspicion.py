"""How near each client of a round is to being left out, for an aggregator whose strictness follows the suspicion."""

from __future__ import annotations

import math

import numpy as np

from ..core.stats import Mask, Scores, cut, median
from .judge import Guard, Judgement


def nearness(scores: Scores, threshold: float, trusted: Mask) -> Scores:
    """How far each client has come from the median of the trusted ones to the threshold, from 0 to 1.

        s_i = clip((u_i - m) / (tau - m), 0, 1),   m = median over trusted j of u_j

    Half of the trusted clients have 0, whatever the others send. A score that is not a number is at the threshold.

    >>> nearness(np.array([0.0, 0.0, 1.0, 3.0]), 2.0, np.array([True, True, True, False])).tolist()
    [0.0, 0.0, 0.5, 1.0]
    """
    middle = median(scores[trusted]) if trusted.any() else 0.0
    span = threshold - middle
    if not (math.isfinite(span) and span > 0):
        return np.zeros(len(scores))
    near = (scores - middle) / span
    return cut(np.where(np.isnan(near), 1.0, near), 0.0, 1.0)


def suspicion(guard: Guard, judgement: Judgement, trusted: Mask) -> Scores:
    """The suspicion of each client: how near it is to the threshold of the watch that it is nearest to.

    Only watches that suspect count; nobody is suspected where fewer clients have come than the guard asks for.
    """
    found = np.zeros(len(judgement.flagged))
    if trusted.sum() < guard.quorum:
        return found
    for watch, record in zip(guard.watches, judgement.watches, strict=True):
        if watch.suspects:
            found = np.maximum(found, nearness(record.scores, record.threshold, trusted))
    return found
