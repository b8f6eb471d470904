"""One round of models by name: which are usable, how they are weighed, the new model, and the round's record."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..core.notes import Note
from ..core.reported import BYTES, SECONDS, joined, told
from ..core.stats import Weights, number
from ..core.types import NO_WORD, Cohort, Outcome, Rejection, Reported, RoundRecord, Word, name_fault
from ..core.words import printable
from ..models.trial import examine
from .adapters import Adapters
from .admission import cohort_of, count_fault, read_each
from .arrays import Converted, Scaled, Unfit, conversion_notes
from .arrays import whole as unscaled
from .metrics import bounded, worst_accuracy
from .params import Arrays, Form, Params, negative_variance, read_all
from .warden import Warden

SCALARS = (bool, int, float, np.bool_, np.integer, np.floating)
TYPES = {True: "whole models (FULL)", False: "differences (DIFF)"}


def usable(name: str) -> str:
    """A client's name as it can be written to disk, or :class:`Unfit`."""
    name = name.encode("utf-8", "backslashreplace").decode("utf-8")  # half a character cannot be
    if fault := name_fault(name):
        raise Unfit(fault)
    return name


@dataclass(frozen=True, eq=False)
class Contribution:
    """What one client sent, read without comparing it with the model; ``params`` are its values, unchanged.

    ``whole`` is true for a whole model, false for the difference from the model that the client was sent.
    """

    client: str
    whole: bool
    params: Mapping[str, Any]
    arrays: Arrays
    count: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    size: int = 0
    seconds: float = math.nan

    @classmethod
    def of(
        cls,
        client: str,
        whole: bool,
        params: Any,
        sent: object,
        metrics: object,
        listed: Collection[str] | None = None,
    ) -> Self:
        """What a client sent, or :class:`Unfit`. Without an example count it counts 1; only ``listed`` metrics are
        read, by default all.
        """
        arrays = read_all(params)
        count = 1.0 if sent is None else number(sent)
        if fault := count_fault(count):
            raise Unfit(fault)
        claimed = metrics if isinstance(metrics, Mapping) else {}
        values = {k: number(v) for k, v in claimed.items() if isinstance(k, str) and isinstance(v, SCALARS)}
        read = values if listed is None else values.keys() & listed
        finite = {name: value for name, value in values.items() if name in read and math.isfinite(value)}
        return cls(client, whole, params, arrays, count, finite, sum(array.nbytes for array in arrays.values()))

    def without(self, names: Collection[str]) -> Contribution:
        """The same without the arrays that stay at the client."""
        params = {name: value for name, value in self.params.items() if name not in names}
        return replace(self, params=params, arrays={name: self.arrays[name] for name in params})


@dataclass(frozen=True, eq=False)
class Letter:
    """A contribution in the form of the model."""

    client_id: str
    layers: list[NDArray[Any] | Scaled]
    count: float
    metrics: Mapping[str, float]
    converted: Converted


def usual_kind(kinds: Sequence[bool], last: bool | None) -> bool:
    """Whether most clients send whole models; a tie repeats the last round, and is true without one."""
    votes = Counter(kinds)
    if votes[True] == votes[False]:
        return last is not False
    return votes[True] > votes[False]


def form_of(came: Sequence[Contribution], base: Mapping[str, Any] | None, buffers: Sequence[str]) -> Form:
    """The parameters of a round.

    They are those of the model, or the part of it that more than half of the clients send, for example behind a filter.
    If the model is not known, they are what most clients send.
    """
    if base is None:
        forms = [tuple((name, a.shape, a.dtype.str) for name, a in c.arrays.items()) for c in came]
        usual = Counter(frozenset(form) for form in forms).most_common(1)[0][0]
        return Form.of(next(c.params for c, form in zip(came, forms, strict=True) if frozenset(form) == usual), buffers)
    sent = Counter(frozenset(c.arrays) for c in came)
    names, votes = sent.most_common(1)[0] if sent else (frozenset(base), 0)
    part = 2 * votes > len(came) and names < set(base)
    return Form.of({name: value for name, value in base.items() if name in names or not part}, buffers)


def open_letters(
    came: Sequence[Contribution], form: Form, whole: bool, base: Arrays | None, adapters: Adapters | None = None
) -> tuple[list[Letter], list[Rejection]]:
    """The contributions that fit the model, and rejections of the others, with the reason."""
    return read_each([(sent.client, sent) for sent in came], partial(open_letter, form, whole, base, adapters))


def open_letter(
    form: Form, whole: bool, base: Arrays | None, adapters: Adapters | None, client: str, sent: Contribution
) -> Letter:
    """A contribution in the form of the model, or :class:`Unfit`; its ``adapters`` may have ranks of their own."""
    if sent.whole != whole:
        raise Unfit.of("params_type", sent=TYPES[sent.whole], expected=TYPES[whole])
    if adapters is not None:
        if not whole:
            raise Unfit.of("adapters_difference")
        ranked = adapters.ranked(form.slots, {name: array.shape for name, array in sent.arrays.items()})
        form = replace(form, slots=tuple(ranked))
    layers, converted = form.settle(sent.arrays)
    if adapters is not None:  # factors are multiplied
        layers = [unscaled(x, slot) if isinstance(x, Scaled) else x for x, slot in zip(layers, form.slots, strict=True)]
        adapters.check(form.names, layers)
    if (whole or base is not None) and (fault := negative_variance(layers, form, None if whole else base)):
        raise Unfit(fault)
    return Letter(client, layers, sent.count, sent.metrics, converted)


def reported_by(came: Sequence[Contribution]) -> Reported:
    """The metrics that clients report, and the bytes and seconds of their replies."""
    seconds = {sent.client: sent.seconds for sent in came if math.isfinite(sent.seconds)}
    seen = {SECONDS: seconds, BYTES: {sent.client: float(sent.size) for sent in came}}
    return joined(told("train/", ((sent.client, sent.metrics) for sent in came)), seen if came else {})


def average_metrics(letters: Sequence[Letter], weights: Weights) -> tuple[dict[str, float], list[Note]]:
    """The mean of each metric that most clients sent, over those clients, and a note of every value that was clipped.

    A metric that few clients send is recorded by client but not averaged: a client can send any number under any name.
    """
    means: dict[str, float] = {}
    notes: list[Note] = []
    sent = Counter(name for letter in letters for name in letter.metrics)
    for name in sorted(name for name, times in sent.items() if 2 * times > len(letters)):
        index = [i for i, letter in enumerate(letters) if name in letter.metrics]
        values = np.array([letters[i].metrics[name] for i in index])
        kept, found = bounded(name, [letters[i].client_id for i in index], values[:, None])
        notes += found
        shares = weights[index]
        if shares.sum() > 0:
            with np.errstate(over="ignore"):
                means[name] = float(kept[:, 0] @ (shares / shares.sum()))
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}, notes


@dataclass(frozen=True, eq=False)
class Made:
    """The result of a round; ``params`` is None if the model stays unchanged."""

    record: RoundRecord
    params: dict[str, Any] | None = None
    metrics: Mapping[str, float] | None = None


def play(
    warden: Warden,
    came: Sequence[Contribution],
    refused: Sequence[Rejection],
    form: Form,
    whole: bool,
    sent: Params | None,
    round: int,
    word: Word = NO_WORD,
    adapters: Adapters | None = None,
) -> Made:
    """Judge the clients' models, update the warden's memory, and combine what is kept. ``word`` is the operator's.

    ``sent`` is the model that the clients were sent, as the engine holds it. The products of ``adapters`` are combined.
    """
    if not form.measured:
        return Made(idle_round(round, came, refused, Note.of("nothing_to_measure")))
    base = None if sent is None else read_all(sent)
    if adapters is not None and base is None:
        return Made(idle_round(round, came, refused, Note.of("adapters_unknown")))
    letters, unfit = open_letters(came, form, whole, base, adapters)
    params = None if base is None else form.flatten(base)
    base_of_rows = params if whole else None
    reported, folded, notes = reported_by(came), None, list[Note]()
    if adapters is not None and base is not None:
        model = [base[name] for name in form.names]
        folded = adapters.fold(round, letters, form.names, model, form.measured, reported)
        outcome = warden.step(folded.cohort, [*refused, *unfit], word)
    else:
        cohort = cohort_of(round, letters, form, params, base=base_of_rows, reported=reported)
        outcome, notes = judged(warden, cohort, [*refused, *unfit], whole, word)
    notes += conversion_notes((letter.client_id, letter.converted) for letter in letters)
    metrics, cut = average_metrics(letters, outcome.weights)
    worst = worst_accuracy(reported, outcome.record.excluded)
    notes = [*outcome.record.notes, *notes, *cut]
    record = replace(outcome.record, notes=tuple(notes), metrics={**outcome.record.metrics, **worst})
    if not outcome.weights.any():
        return Made(record)
    make = form.whole if whole else form.difference
    with np.errstate(over="ignore"):
        if folded is None:
            made = make(outcome.update, base)
        else:
            layers, more = folded.unfold(outcome.update)
            slots = [slot.shaped(layer.shape) for slot, layer in zip(form.slots, layers, strict=True)]
            form = replace(form, slots=tuple(slots))
            made = {slot.name: slot.wrap(layer) for slot, layer in zip(slots, layers, strict=True)}
            record = replace(record, metrics={**record.metrics, **more})
    if examine(form.flatten(read_all(made)), form.names, [slot.size for slot in form.slots]).fault:
        notes = [*record.notes, Note.of("new_not_finite")]
        return Made(replace(record, weights=np.zeros(len(outcome.weights)), notes=tuple(notes)))
    if whole and sent is not None:
        made = {**sent, **made}  # what no client sends stays
    told = {f"train/{printable(name)}": value for name, value in metrics.items()}
    return Made(replace(record, metrics={**record.metrics, **told}), made, metrics or None)


def judged(
    warden: Warden, cohort: Cohort, refused: Sequence[Rejection], whole: bool, word: Word = NO_WORD
) -> tuple[Outcome, list[Note]]:
    """The warden's outcome; for whole models, if the model that they started from is not known, their median."""
    if whole and cohort.params is None:
        plain = Warden(aggregator="median", admission=warden.admission)
        return plain.step(cohort, refused, word), [Note.of("base_unknown")]
    return warden.step(cohort, refused, word), []


def idle_round(
    round: int, came: Sequence[Contribution], refused: Sequence[Rejection] = (), note: Note | None = None
) -> RoundRecord:
    """The record of a round in which nothing was combined."""
    n = len(came)
    clients, counts = tuple(sent.client for sent in came), np.array([sent.count for sent in came])
    notes = () if note is None else (note,)
    flagged = np.zeros(n, bool)
    return RoundRecord(
        round, clients, counts, np.zeros(n), flagged=flagged, rejected=tuple(refused), notes=notes,
        reported=reported_by(came),
    )  # fmt: skip
