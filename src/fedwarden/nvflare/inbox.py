"""One round: which of the sites' models can be used, what they are weighed by, the new model, and the record of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from ..core.notes import Note
from ..core.reported import BYTES, SECONDS, joined, told
from ..core.stats import Weights, number
from ..core.types import NO_WORD, Cohort, Outcome, Rejection, Reported, RoundRecord, Word, name_fault
from ..core.words import printable
from ..guard.adapters import Adapters
from ..guard.admission import cohort_of, count_fault, read_each
from ..guard.arrays import Converted, Scaled, Unfit, conversion_notes
from ..guard.metrics import bounded, worst_accuracy
from ..guard.warden import Warden
from ..models.trial import examine
from .params import Arrays, Form, Params, negative_variance, read_all

UNKNOWN = "unknown"
SCALARS = (bool, int, float, np.bool_, np.integer, np.floating)
TYPES = {ParamsType.FULL: "whole models (FULL)", ParamsType.DIFF: "differences (DIFF)"}


@dataclass(frozen=True, eq=False)
class Contribution:
    """What one site sent, as far as it can be read by itself; ``params`` are its values as they came."""

    site: str
    kind: ParamsType
    params: Mapping[str, Any]
    arrays: Arrays
    count: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    size: int = 0
    seconds: float = math.nan

    def without(self, names: Collection[str]) -> Contribution:
        """The same without the arrays that stay at the site."""
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


def site_of(model: Any) -> str:
    """The name that the server gives a site; it is the server that writes it, not the site.

    >>> site_of(FLModel(params={"w": 1.0}, meta={"client_name": "site-1"}))
    'site-1'
    """
    meta = getattr(model, "meta", None)
    name = meta.get("client_name") if isinstance(meta, Mapping) else None
    if not isinstance(name, str) or not name:
        return UNKNOWN
    name = name.encode("utf-8", "backslashreplace").decode("utf-8")  # half a character cannot be written to disk
    if fault := name_fault(name):
        raise Unfit(fault)
    return name


def contribution(site: str, model: Any, key: str, listed: Collection[str] | None = None) -> Contribution:
    """What a site sent, or :class:`Unfit`; where it gives no count it counts 1, as in NVIDIA FLARE's FedAvg."""
    if not isinstance(model, FLModel):
        raise Unfit.of("not_a_model", sent=type(model).__name__)
    if model.params is None:
        raise Unfit.of("sent_nothing")
    arrays = read_all(model.params)
    sent = model.meta.get(key) if isinstance(model.meta, Mapping) else None
    count = 1.0 if sent is None else number(sent)
    if fault := count_fault(count):
        raise Unfit(fault)
    claimed = model.metrics if isinstance(model.metrics, Mapping) else {}
    values = {k: number(v) for k, v in claimed.items() if isinstance(k, str) and isinstance(v, SCALARS)}
    read = values if listed is None else values.keys() & listed
    metrics = {name: value for name, value in values.items() if name in read and math.isfinite(value)}
    size = sum(array.nbytes for array in arrays.values())
    return Contribution(site, ParamsType(model.params_type), model.params, arrays, count, metrics, size)


def usual_kind(kinds: Sequence[ParamsType], last: ParamsType | None) -> ParamsType:
    """Whole models or differences, whichever most sites send; of as many, that of the last round, else whole models."""
    votes = Counter(kinds)
    whole, differences = votes[ParamsType.FULL], votes[ParamsType.DIFF]
    if whole == differences:
        return last or ParamsType.FULL
    return ParamsType.FULL if whole > differences else ParamsType.DIFF


def form_of(came: Sequence[Contribution], base: Mapping[str, Any] | None, buffers: Sequence[str]) -> Form:
    """The parameters that a round is about.

    They are those of the model, unless more than half of the sites send the same part of it, as where a filter keeps
    some back. Where the model is not known they are what most sites send.
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
    came: Sequence[Contribution], form: Form, kind: ParamsType, base: Arrays | None, adapters: Adapters | None = None
) -> tuple[list[Letter], list[Rejection]]:
    """The contributions that fit the model, and the others with the reason."""
    return read_each([(sent.site, sent) for sent in came], partial(open_letter, form, kind, base, adapters))


def open_letter(
    form: Form, kind: ParamsType, base: Arrays | None, adapters: Adapters | None, site: str, sent: Contribution
) -> Letter:
    """A contribution in the form of the model, or :class:`Unfit`."""
    if sent.kind != kind:
        raise Unfit.of("params_type", sent=TYPES[sent.kind], expected=TYPES[kind])
    if adapters is not None:
        if kind is ParamsType.DIFF:
            raise Unfit.of("adapters_difference")
        ranked = adapters.ranked(form.slots, {name: array.shape for name, array in sent.arrays.items()})
        form = replace(form, slots=tuple(ranked))
    layers, converted = form.settle(sent.arrays)
    if adapters is not None:
        adapters.check(form.names, layers)
    if (kind is ParamsType.FULL or base is not None) and (
        fault := negative_variance(layers, form, None if kind is ParamsType.FULL else base)
    ):
        raise Unfit(fault)
    return Letter(site, layers, sent.count, sent.metrics, converted)


def reported_by(came: Sequence[Contribution]) -> Reported:
    """What sites tell of themselves, and the bytes and seconds of what they sent."""
    seconds = {sent.site: sent.seconds for sent in came if math.isfinite(sent.seconds)}
    seen = {SECONDS: seconds, BYTES: {sent.site: float(sent.size) for sent in came}}
    return joined(told("train/", ((sent.site, sent.metrics) for sent in came)), seen if came else {})


def average_metrics(letters: Sequence[Letter], weights: Weights) -> tuple[dict[str, float], list[Note]]:
    """The mean of each metric that most sites sent, over those, and a note of every value that was cut.

    What few send is in the record by site, and nobody else is told: one of them could send any number under any name.
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
    adapters: Adapters | None = None,
) -> Made:
    """Judge the sites' models and combine what remains; the warden remembers it. ``word`` is the operator's.

    ``sent`` is the model that the sites were sent, as NVIDIA FLARE holds it; of ``adapters`` the products are combined.
    """
    if not form.measured:
        return Made(idle_round(round, came, refused, Note.of("nothing_to_measure")))
    base = None if sent is None else read_all(sent)
    if adapters is not None and base is None:
        return Made(idle_round(round, came, refused, Note.of("adapters_unknown")))
    letters, unfit = open_letters(came, form, kind, base, adapters)
    params = None if base is None else form.flatten(base)
    base_of_rows = params if kind is ParamsType.FULL else None
    reported, folded, notes = reported_by(came), None, list[Note]()
    if adapters is not None and base is not None:
        model = [base[name] for name in form.names]
        folded = adapters.fold(round, letters, form.names, model, form.measured, reported)
        outcome = warden.step(folded.cohort, [*refused, *unfit], word)
    else:
        cohort = cohort_of(round, letters, form, params, base=base_of_rows, reported=reported)
        outcome, notes = judged(warden, cohort, [*refused, *unfit], kind, word)
    notes += conversion_notes((letter.client_id, letter.converted) for letter in letters)
    metrics, cut = average_metrics(letters, outcome.weights)
    worst = worst_accuracy(reported, outcome.record.excluded)
    notes = [*outcome.record.notes, *notes, *cut]
    record = replace(outcome.record, notes=tuple(notes), metrics={**outcome.record.metrics, **worst})
    if not outcome.weights.any():
        return Made(record)
    make = form.whole if kind is ParamsType.FULL else form.difference
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
