"""What clients tell of themselves, compared: a number of theirs that is unlike the others'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.notes import Note
from ..core.registry import register
from ..core.stats import FARTHEST, Mask, Scores
from ..core.types import Cohort, Reading


def from_median(values: Scores, reference: Mask) -> Scores:
    """How far each value lies from the median one of the reference, 1e100 at most; 0 where there is none (NaN).

    >>> from_median(np.array([1.0, 2.0, np.nan, 9.0]), np.array([True, True, True, False])).tolist()
    [0.5, 0.5, 0.0, 7.5]
    """
    known = values[reference & np.isfinite(values)]
    if not len(known):
        return np.zeros(len(values))
    far = np.minimum(np.abs(values - np.median(known)), FARTHEST)
    return np.asarray(np.nan_to_num(far, nan=0.0), dtype=np.float64)


@register("signal", "reported")
@dataclass(frozen=True)
class ReportedNumber:
    """How far a number that clients report lies from the median one; 0 for a client that does not report it.

    ``metric`` is its name with the kind of message it came in, such as ``train/loss``. A client tells what it likes:
    this finds broken ones, and liars who do not know what the others tell. Unless most clients in good standing report
    it nobody stands out, since who does would: a warning says so, and what most report instead.
    """

    metric: str = "train/loss"
    words: ClassVar[str] = "what it reports of itself is unlike the others'"

    def __call__(self, cohort: Cohort) -> Reading:
        told = cohort.reported.get(self.metric, {})
        values = np.array([told.get(client, np.nan) for client in cohort.client_ids], dtype=np.float64)
        usual = [client for client, counts in zip(cohort.client_ids, cohort.reference, strict=True) if counts]
        many = int(np.isfinite(values[cohort.reference]).sum())
        if 2 * many > len(usual) or not len(values):
            return Reading(from_median(values, cohort.reference))
        names = sorted(
            n for n, own in cohort.reported.items() if 2 * sum(client in own for client in usual) > len(usual)
        )
        warning = Note.of("few_report", metric=self.metric, told=many, clients_asked=len(usual), names=tuple(names))
        return Reading(np.zeros(len(values)), warning=warning)
