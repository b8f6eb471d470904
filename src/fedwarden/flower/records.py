"""What a Flower message holds, read in place: arrays are views of the bytes that arrived, and nothing is trusted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # BatchNorm's statistics: averaged, never measured
LARGEST_HEADER = 10_000  # bytes; as NumPy itself allows
LONGEST = 200  # characters of a client's own words that are kept


class Unfit(ValueError):
    """A reply, or a part of one, that cannot be let in; the message is the reason."""


def view(array: Array) -> NDArray[Any]:
    """A read-only array over the bytes of a serialised one; its header is believed only if it fits their number.

    >>> view(Array(np.array([[1.0, 2.0]]))).tolist()
    [[1.0, 2.0]]
    """
    if array.stype != "numpy.ndarray":
        raise Unfit(f"is serialised as {short(array.stype)!r}; expected 'numpy.ndarray'")
    wide = 4 if array.data[6:8] == b"\x02\x00" else 2  # bytes that hold the header's length
    start = 8 + wide + int.from_bytes(array.data[8 : 8 + wide], "little")
    shape, fortran, dtype = header(array.data[: min(start, LARGEST_HEADER)])
    size, held = math.prod(shape) * dtype.itemsize, len(array.data) - start
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise Unfit(f"has dtype {dtype}; expected real numbers")
    if size != held or min(shape, default=0) < 0:
        raise Unfit(f"holds {held} bytes; its shape {shape} needs {size}")
    flat = np.frombuffer(array.data, dtype, offset=start)
    return flat.reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=4096)
def header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype from the head of a serialised array; the same for every client, so read once."""
    file = BytesIO(head)
    try:
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
        shape, fortran, dtype = read(file)
    except (ValueError, KeyError) as error:
        raise Unfit("cannot be read as a NumPy array") from error
    return tuple(shape), bool(fortran), dtype


@dataclass(frozen=True)
class Template:
    """Names, shapes and kinds of the model's arrays, in the order of its flat form."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    floating: tuple[bool, ...]
    buffers: tuple[str, ...] = BUFFERS

    @classmethod
    def of(cls, record: ArrayRecord, buffers: Sequence[str] = BUFFERS) -> Template:
        arrays = [view(array) for array in record.values()]
        shapes = tuple(tuple(array.shape) for array in arrays)
        return cls(tuple(record), shapes, tuple(array.dtype.kind == "f" for array in arrays), tuple(buffers))

    @property
    def measured(self) -> list[tuple[int, int]]:
        """The column ranges that enter distances: floating arrays that are no buffers."""
        ranges, start = [], 0
        for name, shape, floating in zip(self.names, self.shapes, self.floating, strict=True):
            size = math.prod(shape)
            if floating and size and not name.endswith(self.buffers):
                ranges.append((start, start + size))
            start += size
        return ranges

    def read(self, record: ArrayRecord) -> list[NDArray[Any]]:
        """The arrays in the order of the model, or :class:`Unfit`."""
        if missing := [name for name in self.names if name not in record]:
            raise Unfit(f"sent no array {listing(missing)}; the model has {len(self.names)} arrays")
        if extra := [name for name in record if name not in self.names]:
            raise Unfit(f"sent an array {listing(extra)} that the model does not have")
        arrays = []
        for name, shape, floating in zip(self.names, self.shapes, self.floating, strict=True):
            try:
                array = view(record[name])
            except Unfit as error:
                raise Unfit(f"array {name!r} {error}") from error
            if array.shape != shape:
                raise Unfit(f"array {name!r} has shape {array.shape}; expected {shape}")
            if floating and array.dtype.kind != "f":  # an integer array would not be measured
                raise Unfit(f"array {name!r} has dtype {array.dtype}; expected a floating type")
            arrays.append(array)
        return arrays

    def flatten(self, record: ArrayRecord) -> Tensor:
        """One float32 vector; a copy."""
        return torch.from_numpy(np.concatenate([a.reshape(-1).astype(np.float32) for a in self.read(record)]))

    def unflatten(self, flat: Tensor, like: ArrayRecord) -> ArrayRecord:
        """A record of the dtypes of another."""
        parts = flat.split([math.prod(shape) for shape in self.shapes])
        return ArrayRecord(
            {
                name: Array(np.asarray(cast(part.numpy(), view(like[name]).dtype)).reshape(shape))
                for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
            }
        )


def cast(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values of another dtype, rounded where it is an integer one."""
    return (values if dtype.kind == "f" else np.rint(values)).astype(dtype)


def finite(record: ArrayRecord) -> bool:
    """Whether no number of a model is NaN or infinite."""
    return all(np.isfinite(view(array)).all() for array in record.values())


def metrics_of(message: Message) -> MetricRecord:
    """The one metric record of a reply, of finite numbers."""
    found = list(message.content.metric_records.values())
    if len(found) != 1:
        raise Unfit(f"sent {len(found)} metric records; expected one")
    for key, value in found[0].items():
        if not all(math.isfinite(number(v)) for v in (value if isinstance(value, list) else [value])):
            raise Unfit(f"its metric {short(key)!r} is not a finite number")
    return found[0]


def arrays_of(message: Message) -> ArrayRecord:
    """The one array record of a reply."""
    found = list(message.content.array_records.values())
    if len(found) != 1:
        raise Unfit(f"sent {len(found)} array records; expected one")
    return found[0]


def spoken(message: Message) -> None:
    """Raise :class:`Unfit` where a message carries an error or nothing."""
    if message.has_error():
        raise Unfit(f"failed: {short(message.error.reason or '') or f'error {message.error.code}'}")
    if not message.has_content():
        raise Unfit("sent nothing")


def form(message: Message) -> tuple[Any, ...]:
    """What all replies of a round must have in common for a strategy to combine them."""
    content = message.content
    shapes = {key: len(v) if isinstance(v, list) else None for key, v in metrics_of(message).items()}
    return tuple(content.array_records), tuple(content.metric_records), tuple(sorted(shapes.items()))


def odd_ones(messages: Sequence[Message]) -> dict[int, str]:
    """The positions of replies whose records or metrics are named otherwise than in most, and why."""
    forms = [form(message) for message in messages]
    if len(set(forms)) < 2:
        return {}
    usual = Counter(forms).most_common(1)[0][0]
    expected = listing([key for key, _ in usual[2]])
    return {
        i: f"its records or metrics are named unlike the others'; expected metrics {expected}"
        for i, f in enumerate(forms)
        if f != usual
    }


def number(value: Any) -> float:
    """A metric as a float; NaN where it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def scalars(record: Mapping[str, Any] | None, prefix: str = "") -> dict[str, float]:
    """The metrics that are one number each."""
    return {prefix + key: number(v) for key, v in (record or {}).items() if not isinstance(v, list)}


def listing(names: Iterable[str]) -> str:
    """A few names, quoted; names come from clients, so they are cut."""
    names = [repr(short(name)) for name in names]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def short(text: str) -> str:
    """A client's own words in one line of bounded length."""
    return " ".join(str(text)[: 4 * LONGEST].split())[:LONGEST]
