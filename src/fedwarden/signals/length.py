"""Updates that are longer or shorter than is usual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.registry import register
from ..core.stats import Norms, Scores
from ..core.types import Cohort


def length_ratio(lengths: Norms, median: float) -> Scores:
    """How many times longer or shorter than the median an update is, in logs: |log(||x_i|| / median)|.

    >>> length_ratio(np.array([1.0, 2.0, 4.0]), 2.0).round(4).tolist()
    [0.6931, 0.0, 0.6931]
    """
    floor = max(median, np.finfo(np.float64).tiny) * 1e-6
    return np.asarray(np.abs(np.log(np.maximum(lengths, floor)) - np.log(max(median, floor))), dtype=np.float64)


@register("signal", "update_norm")
@dataclass(frozen=True)
class UpdateNorm:
    """How many times longer or shorter than the median update, in logs."""

    words: ClassVar[str] = "its update has an unusual length"
    weights_only: ClassVar[bool] = True

    def __call__(self, cohort: Cohort) -> Scores:
        lengths = cohort.updates.lengths()
        return length_ratio(lengths, float(np.median(lengths[cohort.reference])))


@register("signal", "update_length")
@dataclass(frozen=True)
class UpdateLength:
    """How many times longer than the median update, in logs; below 0 for shorter ones."""

    words: ClassVar[str] = "its update is far longer than the others'"
    weights_only: ClassVar[bool] = True

    def __call__(self, cohort: Cohort) -> Scores:
        lengths = cohort.updates.lengths()
        floor = max(np.median(lengths[cohort.reference]), np.finfo(np.float64).tiny) * 1e-6
        logs = np.log(np.maximum(lengths, floor))
        return np.asarray(logs - np.median(logs[cohort.reference]), dtype=np.float64)
