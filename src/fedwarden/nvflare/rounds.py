"""One round of an aggregator: from the sites' models to the new one, and to the record of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import ParamsType

from ..core.notes import Note
from ..core.types import NO_WORD, Cohort, Outcome, Rejection, RoundRecord, Word
from ..core.words import printable
from ..guard.admission import cohort_of
from ..guard.arrays import conversion_notes
from ..guard.warden import Warden
from ..models.trial import examine
from .inbox import Contribution, average_metrics, open_letters, reported_by
from .params import Form, Params, read_all


@dataclass(frozen=True, eq=False)
class Made:
    """What became of a round; ``params`` is None where the model stays as it is."""

    record: RoundRecord
    params: dict[str, Any] | None = None
    metrics: Mapping[str, float] | None = None


def play(
    warden: Warden,
    came: Sequence[Contribution],
    refused: Sequence[Rejection],
    form: Form,
    kind: ParamsType,
    sent: Params | None,
    round: int,
    word: Word = NO_WORD,
) -> Made:
    """Judge the sites' models and combine what remains; the warden remembers it. ``word`` is the operator's.

    ``sent`` is the model that the sites were sent, as NVIDIA FLARE holds it.
    """
    if not form.measured:
        return Made(idle_round(round, came, refused, Note.of("nothing_to_measure")))
    base = None if sent is None else read_all(sent)
    letters, unfit = open_letters(came, form, kind, base)
    params = None if base is None else form.flatten(base)
    base_of_rows = params if kind is ParamsType.FULL else None
    cohort = cohort_of(round, letters, form, params, base=base_of_rows, reported=reported_by(came))
    outcome, notes = judged(warden, cohort, [*refused, *unfit], kind, word)
    notes += conversion_notes((letter.client_id, letter.converted) for letter in letters)
    metrics, bounded = average_metrics(letters, outcome.weights)
    record = replace(outcome.record, notes=(*outcome.record.notes, *notes, *bounded))
    if not outcome.weights.any():
        return Made(record)
    make = form.whole if kind is ParamsType.FULL else form.difference
    with np.errstate(over="ignore"):
        made = make(outcome.update, base)
    if examine(form.flatten(read_all(made)), form.names, [slot.size for slot in form.slots]).fault:
        notes = [*record.notes, Note.of("new_not_finite")]
        return Made(replace(record, weights=np.zeros(len(cohort)), notes=tuple(notes)))
    if kind is ParamsType.FULL and sent is not None:
        made = {**sent, **made}  # what no site sends stays
    told = {f"train/{printable(name)}": value for name, value in metrics.items()}
    return Made(replace(record, metrics={**record.metrics, **told}), made, metrics or None)


def judged(
    warden: Warden, cohort: Cohort, refused: Sequence[Rejection], kind: ParamsType, word: Word = NO_WORD
) -> tuple[Outcome, list[Note]]:
    """The warden's outcome; the median of whole models where nobody knows the model that they began with."""
    if kind is ParamsType.FULL and cohort.params is None:
        plain = Warden(aggregator="median", admission=warden.admission)
        return plain.step(cohort, refused, word), [Note.of("base_unknown")]
    return warden.step(cohort, refused, word), []


def idle_round(
    round: int, came: Sequence[Contribution], refused: Sequence[Rejection] = (), note: Note | None = None
) -> RoundRecord:
    """The record of a round in which nothing was combined."""
    n = len(came)
    sites, counts = tuple(sent.site for sent in came), np.array([sent.count for sent in came])
    notes = () if note is None else (note,)
    flagged = np.zeros(n, bool)
    return RoundRecord(
        round, sites, counts, np.zeros(n), flagged=flagged, rejected=tuple(refused), notes=notes,
        reported=reported_by(came),
    )  # fmt: skip
