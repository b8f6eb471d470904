"""What a Flower message holds, read in place: arrays are views of the bytes that arrived, and nothing is trusted."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray
from torch import Tensor

from ..core.notes import Note
from ..core.stats import number
from ..core.words import printable, short
from ..guard.arrays import BUFFERS, Converted, Unfit, cast, check_names, first, measured_ranges, spelt
from .arrays import Slot, view

Form = tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, int | None], ...]]


@dataclass(frozen=True)
class Template:
    """Names, shapes and dtypes of the model's arrays, in the order of its flat form."""

    slots: tuple[Slot, ...]
    buffers: tuple[str, ...] = BUFFERS

    @classmethod
    def of(cls, record: ArrayRecord, buffers: Sequence[str] = BUFFERS) -> Template:
        return cls(tuple(Slot.of(name, view(array)) for name, array in record.items()), tuple(buffers))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(slot.shape for slot in self.slots)

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    @property
    def measured(self) -> list[tuple[int, int]]:
        """The column ranges that enter distances: floating arrays that are no buffers."""
        return measured_ranges(self.slots, self.buffers)

    def settle(self, record: ArrayRecord) -> tuple[ArrayRecord, Converted]:
        """The arrays in the order and the dtypes of the model, as NumPy writes them, and what was converted for it.

        :class:`Unfit` where they are not those of the model. Arrays that need no change share their bytes.
        """
        if tuple(record) != self.names:
            check_names(self.names, record)
        made, converted = ArrayRecord(), Converted()
        for slot in self.slots:
            try:
                made[slot.name], sent = slot.settle(record[slot.name])
            except Unfit as error:
                raise Unfit(Note.of("array", array=slot.name, cause=error.note)) from error
            if sent != slot.dtype:
                converted[spelt(sent), spelt(slot.dtype)] += 1
        return made, converted

    def restore(self, record: ArrayRecord) -> ArrayRecord:
        """What a strategy made, in the dtypes of the model: many average integers into floats, or all into float64."""
        whole = {slot.name for slot in self.slots if slot.dtype.kind != "f"}
        rounded = {k: Array(np.asarray(np.rint(view(a)))) if k in whole else a for k, a in record.items()}
        return self.settle(ArrayRecord(rounded))[0]

    def layers(self, record: ArrayRecord) -> list[NDArray[Any]]:
        """The arrays of a settled record."""
        return [view(record[name]) for name in self.names]

    def flatten(self, record: ArrayRecord) -> Tensor:
        """One float32 vector; a copy."""
        flat = np.empty(sum(self.sizes), np.float32)
        np.concatenate([a.reshape(-1) for a in self.layers(record)], out=flat, casting="unsafe")
        return torch.from_numpy(flat)

    def moved(self, record: ArrayRecord, by: Tensor) -> ArrayRecord:
        """A settled record with a flat vector on top of its floating arrays."""
        made, parts = ArrayRecord(), by.split(self.sizes)
        for slot, part in zip(self.slots, parts, strict=True):
            made[slot.name] = record[slot.name]
            if slot.dtype.kind == "f":
                new = view(record[slot.name]) + part.numpy().reshape(slot.shape)
                made[slot.name] = Array(np.asarray(cast(new, slot.dtype)))
        return made

    def unflatten(self, flat: Tensor) -> ArrayRecord:
        """A record of the model's dtypes."""
        parts = flat.split(self.sizes)
        return ArrayRecord(
            {
                slot.name: Array(np.asarray(cast(part.numpy(), slot.dtype)).reshape(slot.shape))
                for slot, part in zip(self.slots, parts, strict=True)
            }
        )


def metrics_of(message: Message) -> MetricRecord:
    """The one metric record of a reply, of finite numbers."""
    found = list(message.content.metric_records.values())
    if len(found) != 1:
        raise Unfit.of("metric_records", sent=len(found))
    for key, value in found[0].items():
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(v, int | float) and abs(v) <= sys.float_info.max for v in values):
            raise Unfit.of("metric_not_finite", metric=short(key))
    return found[0]


def arrays_of(message: Message) -> tuple[str, ArrayRecord]:
    """The one array record of a reply, with its name."""
    found = list(message.content.array_records.items())
    if len(found) != 1:
        raise Unfit.of("array_records", sent=len(found))
    return found[0]


def answered(message: Message) -> None:
    """Raise :class:`Unfit` where a message carries an error or nothing."""
    if message.has_error():
        raise Unfit.of("failed", error=short(message.error.reason or "") or f"error {message.error.code}")
    if not message.has_content():
        raise Unfit.of("sent_nothing")


def form(message: Message, metrics: MetricRecord) -> Form:
    """What all replies of a round must have in common for a strategy to combine them."""
    content = message.content
    shapes = {key: len(v) if isinstance(v, list) else None for key, v in metrics.items()}
    return tuple(content.array_records), tuple(content.metric_records), tuple(sorted(shapes.items()))


def odd_ones(forms: Sequence[Form]) -> dict[int, Note]:
    """The positions of replies whose records or metrics are named otherwise than in most, and why."""
    if len(set(forms)) < 2:
        return {}
    usual = Counter(forms).most_common(1)[0][0]
    reason = Note.of("named_otherwise", names=first(key for key, _ in usual[2]), many=len(usual[2]))
    return {i: reason for i, f in enumerate(forms) if f != usual}


def scalars(record: Mapping[str, Any] | None, prefix: str = "") -> dict[str, float]:
    """The metrics that are one number each."""
    return {prefix + printable(key): number(v) for key, v in (record or {}).items() if not isinstance(v, list)}


def is_training(message: Message) -> bool:
    """Whether a message asks a node to train."""
    return message.has_content() and message.metadata.message_type.startswith("train")


def round_of(message: Message, config: str) -> int:
    """The server's count of rounds."""
    return int(str(message.content.config_records[config]["server-round"]))
