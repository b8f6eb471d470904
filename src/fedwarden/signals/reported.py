"""What clients report: a number of their own that is unlike the others', or what jurors find of the others."""

from __future__ import annotations

from collections.abc import Mapping
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


@register("signal", "jury")
@dataclass(frozen=True)
class Jury:
    """How much worse the jurors found the model when the client was in it: above 0 is evidence of harm, below of help.

    0 for a client that took no turn in the last round. The parts, if any, are the same without the report of one juror
    each. For the history ``capital`` without ``times_clients``, see :mod:`fedwarden.guard.jury`.
    """

    words: ClassVar[str] = "the jurors' losses rise in the rounds that it is in"
    jurors: ClassVar[bool] = True

    def __call__(self, cohort: Cohort) -> Reading:
        def of(tried: Mapping[str, float]) -> Scores:
            return np.array([tried.get(client, 0.0) for client in cohort.client_ids], dtype=np.float64)

        return Reading(of(cohort.tried), {f"without {juror}": of(z) for juror, z in cohort.tried_without.items()})
