"""What a Flower message holds, read in place: arrays are views of the bytes that arrived, and nothing is trusted."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from ..core.notes import Note
from ..core.stats import number
from ..core.words import printable, short
from ..guard.arrays import BUFFERS, Converted, Scaled, Unfit, cast, first, fitted, measured_ranges, scaled, spelt, whole
from ..updates.segments import give_back

SERIALISED, BFLOAT16 = "numpy.ndarray", "bfloat16"
LARGEST_HEADER = 4096  # bytes; one of 64 dimensions takes a third of them
MOST_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32  # as in NumPy
LARGEST_ARRAY = 2**63 - 1  # bytes
SIZE = "(?:0|[1-9][0-9]{0,18})"
HEADER = re.compile(
    r"\{'descr': '(\|[iub]1|[<|]V2|[<>](?:f[248]|[iu][248]))', 'fortran_order': (True|False), "
    rf"'shape': \((|{SIZE},|{SIZE}(?:, {SIZE})+)\),? ?\}} *\n".encode()
)

Form = tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, int | None], ...]]


class Stored(Array):
    """An array of a reply as it came, whose bytes lie in a file; they are copied if somebody asks for them."""

    def __init__(self, array: Array, place: NDArray[np.uint8]) -> None:
        self.dtype, self.shape, self.stype, self.place = array.dtype, array.shape, array.stype, place

    @property
    def data(self) -> bytes:  # type: ignore[override]
        return self.place.tobytes()


class Made(Array):
    """An array like those of the model, which is made of a file whenever somebody asks for its numbers."""

    def __init__(self, slot: Slot, make: Callable[[], NDArray[Any]]) -> None:
        self.dtype, self.shape, self.stype, self.make = slot.spelling, slot.shape, SERIALISED, make

    def numpy(self) -> NDArray[Any]:
        return self.make()

    @property
    def data(self) -> bytes:  # type: ignore[override]
        return Array(self.make()).data


def taken(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A copy in memory of an array in a file, whose pages are given back."""
    made = np.array(array, dtype, order="C")
    give_back([pages] if (pages := getattr(array, "_mmap", None)) else [])
    return made


def size_of(array: Array) -> int:
    """The bytes of an array that came."""
    return len(array.place if isinstance(array, Stored) else array.data)


def view(array: Array) -> NDArray[Any]:
    """A read-only array over the bytes of a serialised one; its header is believed only if it fits their number.

    >>> view(Array(np.array([[1.0, 2.0]]))).tolist()
    [[1.0, 2.0]]
    """
    if array.stype != SERIALISED:
        raise Unfit.of("array_serialised", sent=short(array.stype), expected=SERIALISED)
    data = array.place if isinstance(array, Stored) else array.data
    head = head_of(bytes(data[:LARGEST_HEADER]))
    shape, fortran, dtype = header(head)
    size, held = math.prod(shape) * dtype.itemsize, len(data) - len(head)
    if size != held:
        raise Unfit.of("array_bytes", held=held, shape=shape, needed=size)
    if isinstance(data, np.ndarray):
        flat = data[len(head) :].view(dtype)
    else:
        flat = np.frombuffer(data, dtype, offset=len(head))
    if array.dtype == BFLOAT16 and dtype.itemsize == 2 and dtype.kind in "Vu":
        flat = (flat.view("<u2").astype(np.uint32) << 16).view(np.float32)  # NumPy has no bfloat16: half a float32
    elif dtype.kind == "V":
        raise Unfit.of("array_not_real")
    return flat.reshape(shape, order="F" if fortran else "C")


def head_of(data: bytes) -> bytes:
    """What stands before the numbers of a serialised array: magic, version, length and header."""
    wide = 2 if data[6:7] == b"\x01" else 4  # bytes that hold the header's length
    stop = 8 + wide + int.from_bytes(data[8 : 8 + wide], "little")
    if stop > min(LARGEST_HEADER, len(data)):
        raise Unfit.of("array_not_numpy")
    return data[:stop]


@lru_cache(maxsize=4096)
def header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype; they are the same for every client, so they are read once.

    Nothing is understood but what NumPy writes before real numbers.

    >>> header(head_of(Array(np.ones((2, 3), np.float32)).data))
    ((2, 3), False, dtype('float32'))
    """
    if head[:6] != b"\x93NUMPY" or head[6:8] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise Unfit.of("array_not_numpy")
    found = HEADER.fullmatch(head, 10 if head[6] == 1 else 12)
    if found is None:
        raise Unfit.of("array_not_real")
    dtype, shape = np.dtype(found[1].decode()), tuple(int(size) for size in found[3].split(b",") if size)
    if len(shape) > MOST_DIMENSIONS:
        raise Unfit.of("array_dimensions", sent=len(shape), most=MOST_DIMENSIONS)
    if math.prod(size or 1 for size in shape) * dtype.itemsize > LARGEST_ARRAY:
        raise Unfit.of("array_impossible", shape=shape)
    return shape, found[2] == b"True", dtype


@dataclass(frozen=True)
class Slot:
    """One array of the model: what every client's must be like, down to the bytes that NumPy writes before it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    spelling: str
    head: bytes
    size: int

    @classmethod
    def of(cls, name: str, array: NDArray[Any]) -> Slot:
        file = BytesIO()
        told = {"descr": npy.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
        npy.write_array_header_1_0(file, told)
        size = len(file.getvalue()) + array.nbytes
        return cls(name, array.shape, array.dtype, str(array.dtype), file.getvalue(), size)

    def shaped(self, shape: tuple[int, ...]) -> Slot:
        """The same for arrays of another shape."""
        return Slot.of(self.name, np.broadcast_to(np.zeros((), self.dtype), shape))

    def settle(self, array: Array) -> tuple[Array, np.dtype[Any]]:
        """An array as it belongs here, and the dtype that it came in; the same one where nothing is to be done."""
        if isinstance(array, Stored):
            return self.settle_stored(array)
        data = array.data
        if (
            data.startswith(self.head)
            and len(data) == self.size
            and (array.stype, array.dtype, array.shape) == (SERIALISED, self.spelling, self.shape)
        ):
            return array, self.dtype
        sent = view(array)
        if sent.shape != self.shape:
            raise Unfit.of("array_shape", shape=sent.shape, expected=self.shape)
        return Array(np.asarray(fitted(sent, self.dtype))), sent.dtype

    def settle_stored(self, array: Stored) -> tuple[Array, np.dtype[Any]]:
        """The same of an array in a file, which stays there."""
        sent = view(array)
        if sent.shape != self.shape:
            raise Unfit.of("array_shape", shape=sent.shape, expected=self.shape)
        if sent.dtype.kind != self.dtype.kind or not np.can_cast(sent.dtype, self.dtype):
            fitted(sent, self.dtype)  # or it cannot be used
        return Made(self, partial(taken, sent, self.dtype)), sent.dtype


@dataclass(frozen=True)
class Template:
    """Names, shapes and dtypes of the model's arrays, in the order of its flat form."""

    slots: tuple[Slot, ...]
    buffers: tuple[str, ...] = BUFFERS
    personal: Collection[str] = ()

    @classmethod
    def of(cls, record: ArrayRecord, buffers: Sequence[str] = BUFFERS, personal: Collection[str] = ()) -> Template:
        return cls(tuple(Slot.of(name, view(array)) for name, array in record.items()), tuple(buffers), personal)

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
        """The column ranges that enter distances: floating arrays that are shared and no buffers."""
        return measured_ranges(self.slots, self.buffers, self.personal)

    def shared(self, record: ArrayRecord, server: ArrayRecord) -> ArrayRecord:
        """A client's arrays, with the server's in place of those that stay at the client, sent or not."""
        if not self.personal:
            return record
        own = {name: array for name, array in record.items() if name not in self.personal}
        return ArrayRecord({**{name: array for name, array in server.items() if name in self.personal}, **own})

    def settle(self, record: ArrayRecord) -> tuple[ArrayRecord, Converted]:
        """The arrays in the order and the dtypes of the model, as NumPy writes them, and what was converted for it.

        :class:`Unfit` where they are not those of the model. Arrays that need no change share their bytes.
        """
        made, converted, layers = self.read(record)
        for slot, layer in zip(self.slots, layers, strict=True):
            if isinstance(layer, Scaled):
                made[slot.name] = Array(whole(layer, slot))
        return made, converted

    def read(self, record: ArrayRecord) -> tuple[ArrayRecord, Converted, list[NDArray[Any] | Scaled]]:
        """The same, where what came as int8 with scales stays so, and the layers of it."""
        narrow = scaled(self.slots, self.buffers, record, view)
        made, converted, layers = ArrayRecord(), Converted(), list[NDArray[Any] | Scaled]()
        for slot in self.slots:
            if (layer := narrow.get(slot.name)) is not None:
                made[slot.name] = record[slot.name] if isinstance(layer, Scaled) else Array(layer)
                layers.append(layer)
                converted["int8", spelt(slot.dtype)] += 1
                continue
            try:
                made[slot.name], sent = slot.settle(record[slot.name])
            except Unfit as error:
                raise Unfit(Note.of("array", array=slot.name, cause=error.note)) from error
            if sent != slot.dtype:
                converted[spelt(sent), spelt(slot.dtype)] += 1
            layers.append(view(record[slot.name] if isinstance(made[slot.name], Made) else made[slot.name]))
        return made, converted, layers

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
        parts = zip(flat.split(self.sizes), self.shapes, strict=True)
        return self.record([part.numpy().reshape(shape) for part, shape in parts])

    def record(self, layers: Sequence[NDArray[Any]]) -> ArrayRecord:
        """A record of these arrays in the model's dtypes."""
        named = zip(self.slots, layers, strict=True)
        return ArrayRecord({slot.name: Array(np.asarray(cast(layer, slot.dtype))) for slot, layer in named})


def listed(content: RecordDict, names: Collection[str]) -> RecordDict:
    """The metric records of a message with the metrics of these names, and nothing else of it."""
    told = content.metric_records.items()
    return RecordDict({place: MetricRecord({k: m[k] for k in m if k in names}) for place, m in told})


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
