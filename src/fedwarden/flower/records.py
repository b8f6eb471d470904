"""What a Flower message holds, read in place: arrays are views of the bytes that arrived, and nothing is trusted."""

from __future__ import annotations

import math
import re
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

from ..core.words import printable

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # BatchNorm's statistics: averaged, never measured
VARIANCE = "running_var"  # arrays whose names end so are never below zero
LONGEST = 200  # characters of a client's own words that are kept
SERIALISED = "numpy.ndarray"
LARGEST_HEADER = 4096  # bytes; one of 64 dimensions takes a third of them
MOST_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32  # as in NumPy
LARGEST_ARRAY = 2**63 - 1  # bytes
SIZE = "(?:0|[1-9][0-9]{0,18})"
HEADER = re.compile(
    r"\{'descr': '(\|[iub]1|[<>](?:f[248]|[iu][248]))', 'fortran_order': (True|False), "
    rf"'shape': \((|{SIZE},|{SIZE}(?:, {SIZE})+)\),? ?\}} *\n".encode()
)

Converted = Counter[tuple[str, str]]  # how many arrays came as the first dtype where the model has the second
Form = tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, int | None], ...]]


class Unfit(ValueError):
    """A reply, or a part of one, that cannot be let in; the message is the reason."""


def view(array: Array) -> NDArray[Any]:
    """A read-only array over the bytes of a serialised one; its header is believed only if it fits their number.

    >>> view(Array(np.array([[1.0, 2.0]]))).tolist()
    [[1.0, 2.0]]
    """
    if array.stype != SERIALISED:
        raise Unfit(f"is serialised as '{short(array.stype)}'; expected '{SERIALISED}'")
    head = head_of(array.data)
    shape, fortran, dtype = header(head)
    size, held = math.prod(shape) * dtype.itemsize, len(array.data) - len(head)
    if size != held:
        raise Unfit(f"holds {held} bytes; its shape {shape} needs {size}")
    flat = np.frombuffer(array.data, dtype, offset=len(head))
    return flat.reshape(shape, order="F" if fortran else "C")


def head_of(data: bytes) -> bytes:
    """What stands before the numbers of a serialised array: magic, version, length and header."""
    wide = 2 if data[6:7] == b"\x01" else 4  # bytes that hold the header's length
    stop = 8 + wide + int.from_bytes(data[8 : 8 + wide], "little")
    if stop > min(LARGEST_HEADER, len(data)):
        raise Unfit("cannot be read as a NumPy array")
    return data[:stop]


@lru_cache(maxsize=4096)
def header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype; they are the same for every client, so they are read once.

    Nothing is understood but what NumPy writes before real numbers.

    >>> header(head_of(Array(np.ones((2, 3), np.float32)).data))
    ((2, 3), False, dtype('float32'))
    """
    if head[:6] != b"\x93NUMPY" or head[6:8] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise Unfit("cannot be read as a NumPy array")
    found = HEADER.fullmatch(head, 10 if head[6] == 1 else 12)
    if found is None:
        raise Unfit("cannot be read as a NumPy array of real numbers")
    dtype, shape = np.dtype(found[1].decode()), tuple(int(size) for size in found[3].split(b",") if size)
    if len(shape) > MOST_DIMENSIONS:
        raise Unfit(f"has {len(shape)} dimensions; expected at most {MOST_DIMENSIONS}")
    if math.prod(size or 1 for size in shape) * dtype.itemsize > LARGEST_ARRAY:
        raise Unfit(f"has shape {shape}, which no array can have")
    return shape, found[2] == b"True", dtype


@lru_cache(maxsize=4096)
def usual_head(shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> bytes:
    """What NumPy itself writes before such an array."""
    file = BytesIO()
    told = {"descr": npy.dtype_to_descr(dtype), "fortran_order": fortran, "shape": shape}
    npy.write_array_header_1_0(file, told)
    return file.getvalue()


def fitted(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The same numbers in another dtype, or :class:`Unfit` where they are of another kind or too large for it.

    >>> fitted(np.array([1.0, 2.5]), np.dtype(np.float32))
    array([1. , 2.5], dtype=float32)
    """
    if array.dtype == dtype or not array.size:
        return array.astype(dtype, copy=False)
    if dtype.kind == "f":
        if array.dtype.kind != "f":  # an integer array would not be measured
            raise Unfit(f"has dtype {array.dtype}; expected a floating type")
        with np.errstate(over="ignore"):
            new = array.astype(dtype)
        lost = np.isinf(new) & np.isfinite(array)
        if lost.any():
            raise Unfit(f"holds {array[lost][0]:g}, too large for the model's {dtype}")
        return new
    if array.dtype.kind == "f" and not (np.isfinite(array) & (np.rint(array) == array)).all():
        raise Unfit(f"has dtype {array.dtype}; expected an integer type")
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for value in (int(array.min()), int(array.max())):
        if not low <= value <= high:
            raise Unfit(f"holds {value}; the model's {dtype} goes from {low} to {high}")
    return array.astype(dtype)


@dataclass(frozen=True)
class Template:
    """Names, shapes and dtypes of the model's arrays, in the order of its flat form."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]
    buffers: tuple[str, ...] = BUFFERS

    @classmethod
    def of(cls, record: ArrayRecord, buffers: Sequence[str] = BUFFERS) -> Template:
        arrays = [view(array) for array in record.values()]
        shapes = tuple(tuple(array.shape) for array in arrays)
        return cls(tuple(record), shapes, tuple(array.dtype for array in arrays), tuple(buffers))

    @property
    def measured(self) -> list[tuple[int, int]]:
        """The column ranges that enter distances: floating arrays that are no buffers."""
        ranges, start = [], 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            size = math.prod(shape)
            if dtype.kind == "f" and size and not name.endswith(self.buffers):
                ranges.append((start, start + size))
            start += size
        return ranges

    def settle(self, record: ArrayRecord) -> tuple[ArrayRecord, Converted]:
        """The arrays in the order and the dtypes of the model, as NumPy writes them, and what was converted for it.

        :class:`Unfit` where they are not those of the model. Arrays that need no change share their bytes.
        """
        if missing := [name for name in self.names if name not in record]:
            raise Unfit(f"sent no array {listing(missing)}; the model has {len(self.names)} arrays")
        known = set(self.names)
        if extra := [name for name in record if name not in known]:
            raise Unfit(f"sent an array {listing(extra)} that the model does not have")
        settled, converted = {}, Converted()
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            try:
                settled[name], sent = _settled(record[name], shape, dtype)
            except Unfit as error:
                raise Unfit(f"array {name!r} {error}") from error
            if sent != dtype:
                converted[spelt(sent), spelt(dtype)] += 1
        return ArrayRecord(settled), converted

    def restore(self, record: ArrayRecord) -> ArrayRecord:
        """What a strategy made, in the dtypes of the model: many average integers into floats, or all into float64."""
        whole = {name for name, dtype in zip(self.names, self.dtypes, strict=True) if dtype.kind != "f"}
        rounded = {k: Array(np.asarray(np.rint(view(a)))) if k in whole else a for k, a in record.items()}
        return self.settle(ArrayRecord(rounded))[0]

    def layers(self, record: ArrayRecord) -> list[NDArray[Any]]:
        """The arrays of a settled record."""
        return [view(record[name]) for name in self.names]

    def below_zero(self, record: ArrayRecord) -> dict[str, float]:
        """The arrays of variances that have negative entries, with the lowest of each."""
        variances = {name: view(record[name]) for name in self.names if name.endswith(VARIANCE)}
        return {name: float(a.min()) for name, a in variances.items() if a.size and a.min() < 0}

    def flatten(self, record: ArrayRecord) -> Tensor:
        """One float32 vector; a copy."""
        return torch.from_numpy(np.concatenate([a.reshape(-1).astype(np.float32) for a in self.layers(record)]))

    def unflatten(self, flat: Tensor) -> ArrayRecord:
        """A record of the model's dtypes."""
        parts = flat.split([math.prod(shape) for shape in self.shapes])
        return ArrayRecord(
            {
                name: Array(np.asarray(cast(part.numpy(), dtype)).reshape(shape))
                for name, shape, dtype, part in zip(self.names, self.shapes, self.dtypes, parts, strict=True)
            }
        )


def _settled(array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, np.dtype[Any]]:
    """One array as the model has it, and the dtype that it came in."""
    sent = view(array)
    if sent.shape != shape:
        raise Unfit(f"has shape {sent.shape}; expected {shape}")
    head = head_of(array.data)
    if sent.dtype == dtype and head == usual_head(*header(head)):
        return Array(str(dtype), shape, SERIALISED, array.data), dtype
    return Array(np.asarray(fitted(sent, dtype))), sent.dtype


def spelt(dtype: np.dtype[Any]) -> str:
    """A dtype's name.

    >>> spelt(np.dtype("<f4")), spelt(np.dtype(">f4"))
    ('float32', 'big-endian float32')
    """
    return dtype.name if dtype.str[0] in "<|" else f"big-endian {dtype.name}"


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
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(v, int | float) and math.isfinite(number(v)) for v in values):
            raise Unfit(f"its metric '{short(key)}' is not a finite number")
    return found[0]


def arrays_of(message: Message) -> tuple[str, ArrayRecord]:
    """The one array record of a reply, with its name."""
    found = list(message.content.array_records.items())
    if len(found) != 1:
        raise Unfit(f"sent {len(found)} array records; expected one")
    return found[0]


def spoken(message: Message) -> None:
    """Raise :class:`Unfit` where a message carries an error or nothing."""
    if message.has_error():
        raise Unfit(f"failed: {short(message.error.reason or '') or f'error {message.error.code}'}")
    if not message.has_content():
        raise Unfit("sent nothing")


def form(message: Message) -> Form:
    """What all replies of a round must have in common for a strategy to combine them."""
    content = message.content
    shapes = {key: len(v) if isinstance(v, list) else None for key, v in metrics_of(message).items()}
    return tuple(content.array_records), tuple(content.metric_records), tuple(sorted(shapes.items()))


def odd_ones(forms: Sequence[Form]) -> dict[int, str]:
    """The positions of replies whose records or metrics are named otherwise than in most, and why."""
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
    return {prefix + printable(key): number(v) for key, v in (record or {}).items() if not isinstance(v, list)}


def listing(names: Iterable[str]) -> str:
    """A few names, quoted; names come from clients, so they are cut."""
    names = [f"'{short(name)}'" for name in names]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def short(text: str) -> str:
    """A client's own words in one line of bounded length, with nothing in them that steers a terminal."""
    return printable(" ".join(str(text)[: 4 * LONGEST].split()))[:LONGEST]
