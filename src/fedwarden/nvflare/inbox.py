"""The models that the sites of a round send: which can be used, and the numbers that they are weighed by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from ..core.notes import Note
from ..core.reported import BYTES, SECONDS, joined, told
from ..core.stats import Weights, number
from ..core.types import Rejection, Reported, name_fault
from ..guard.admission import count_fault, read_each
from ..guard.arrays import Converted, Unfit
from ..guard.metrics import bounded
from .params import Arrays, Form, negative_variance, read_all

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


@dataclass(frozen=True, eq=False)
class Letter:
    """A contribution in the form of the model."""

    client_id: str
    layers: list[NDArray[Any]]
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


def contribution(site: str, model: Any, key: str) -> Contribution:
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
    metrics = {name: value for name, value in values.items() if math.isfinite(value)}
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
    came: Sequence[Contribution], form: Form, kind: ParamsType, base: Arrays | None
) -> tuple[list[Letter], list[Rejection]]:
    """The contributions that fit the model, and the others with the reason."""
    return read_each([(sent.site, sent) for sent in came], partial(open_letter, form, kind, base))


def open_letter(form: Form, kind: ParamsType, base: Arrays | None, site: str, sent: Contribution) -> Letter:
    """A contribution in the form of the model, or :class:`Unfit`."""
    if sent.kind != kind:
        raise Unfit.of("params_type", sent=TYPES[sent.kind], expected=TYPES[kind])
    layers, converted = form.settle(sent.arrays)
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
