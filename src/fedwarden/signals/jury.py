"""What named clients report, and what it says of the clients that took turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.registry import register
from ..core.stats import Scores
from ..core.types import Cohort, Reading


@register("signal", "jury")
@dataclass(frozen=True)
class Jury:
    """How much worse the jurors found the model when the client was in it: above 0 is evidence of harm, below of help.

    0 for a client that took no turn in the last round. The parts, if any, are the same without the report of one juror
    each. For the history ``capital`` without ``times_clients``, see
    :mod:`fedwarden.guard.jury`.
    """

    words: ClassVar[str] = "the jurors' losses rise in the rounds that it is in"
    jurors: ClassVar[bool] = True

    def __call__(self, cohort: Cohort) -> Reading:
        def of(tried: Mapping[str, float]) -> Scores:
            return np.array([tried.get(client, 0.0) for client in cohort.client_ids], dtype=np.float64)

        return Reading(of(cohort.tried), {f"without {juror}": of(z) for juror, z in cohort.tried_without.items()})
