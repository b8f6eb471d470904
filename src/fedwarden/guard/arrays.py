"""Arrays that clients of an integration send, fitted to those of the model; none of them is trusted."""

from __future__ import annotations

import fnmatch
import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.errors import ConfigError, nearest
from ..core.notes import Note, Value
from ..core.types import Rejection
from ..core.words import reason, short
from ..models.trial import VARIANCE
from ..updates.segments import Scaled as Scaled

T = TypeVar("T")
SCALE = ".scale"  # behind the name of an array of int8: the array of its scales
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # BatchNorm's statistics: averaged, never measured
Converted = Counter[tuple[str, str]]  # how many arrays came as the first dtype where the model has the second


class Place(Protocol):
    """One array of the model: what every client's must be like."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...


class Unfit(ValueError):
    """A reply, or a part of one, that cannot be let in; ``note`` is the reason."""

    def __init__(self, note: Note) -> None:
        super().__init__(str(note))
        self.note = note

    @classmethod
    def of(cls, kind: str, **values: Value) -> Unfit:
        return cls(Note(kind, values=values))


def attempt(client: str, read: Callable[[], T]) -> T | Rejection:
    """What reading a reply gives, or why it is rejected: no exception that a client's bytes can cause passes this."""
    try:
        return read()
    except Unfit as error:
        return Rejection(client, error.note)
    except Exception as error:  # also where memory or the stack would not do
        return Rejection(client, Note.of("unreadable", error=type(error).__name__, words=reason(error)))


def staying(names: Collection[str], personal: str | Sequence[str]) -> frozenset[str]:
    """The names of what stays at the client: the model's arrays that match a pattern, and the scales of such arrays.

    >>> sorted(staying(["body.weight", "head.weight", "head.bias"], ["head.*"]))[::2]
    ['head.bias', 'head.weight']
    >>> staying(["body.weight", "head.weight"], ["haed.weight"])
    Traceback (most recent call last):
    fedwarden.core.errors.ConfigError: personal: no array of the model is 'haed.weight'; did you mean 'head.weight'?
    """
    patterns = [personal] if isinstance(personal, str) else personal
    found = {pattern: fnmatch.filter(names, pattern) for pattern in patterns}
    if none := next((pattern for pattern, some in found.items() if not some), None):
        raise ConfigError(f"personal: no array of the model is {none!r}; {nearest(none, names)}")
    arrays = frozenset[str]().union(*found.values())
    return arrays.union(scale for name in arrays if (scale := name + SCALE) not in names)


def measured_ranges(
    places: Iterable[Place], buffers: tuple[str, ...], personal: Collection[str] = ()
) -> list[tuple[int, int]]:
    """The columns of the model's flat form that enter distances: floating arrays that are shared and no buffers."""
    ranges, start = [], 0
    for place in places:
        size = math.prod(place.shape)
        if place.dtype.kind == "f" and size and not place.name.endswith(buffers) and place.name not in personal:
            ranges.append((start, start + size))
        start += size
    return ranges


def check_names(names: Sequence[str], sent: Collection[str]) -> None:
    """Raise :class:`Unfit` where a client's arrays are not named as those of the model.

    >>> check_names(["w", "b"], ["w"])
    Traceback (most recent call last):
    fedwarden.guard.arrays.Unfit: sent no array 'b'; the model has 2 arrays
    """
    if missing := [name for name in names if name not in sent]:
        raise Unfit.of("arrays_missing", names=first(missing), many=len(missing), arrays=len(names))
    known = set(names)
    if extra := [name for name in sent if name not in known]:
        raise Unfit.of("arrays_unknown", names=first(extra), many=len(extra))


def scaled(
    places: Sequence[Place], buffers: tuple[str, ...], sent: Mapping[str, T], read: Callable[[T], NDArray[Any]]
) -> dict[str, Scaled | NDArray[Any]]:
    """The model's floating arrays that came as int8 with their scales.

    Those that are ``buffers`` or variances come as plain numbers, since they are looked at one by one. A name of the
    model's own is no scale. :class:`Unfit` where an array and its scale do not go together, or where all that was sent
    beside scales is not named as the model's arrays.
    """
    found: dict[str, Scaled | NDArray[Any]] = {}
    names = [place.name for place in places]
    scales = {place: place.name + SCALE for place in places if place.dtype.kind == "f"}
    scales = {place: scale for place, scale in scales.items() if scale in sent and scale not in set(names)}
    if list(sent) != names:
        check_names(names, dict.fromkeys(name for name in sent if name not in set(scales.values())))
    for place, scale in scales.items():
        try:
            layer = Scaled(*row([read(sent[place.name]), read(sent[scale])]))
            if layer.shape != place.shape:
                raise Unfit.of("array_shape", shape=layer.shape, expected=place.shape)
            if layer.fault:
                raise Unfit(layer.fault)
            if (most := 128 * float(layer.scale.max())) > float(np.finfo(place.dtype).max):
                raise Unfit.of("array_too_large", value=most, dtype=str(place.dtype))
        except Unfit as error:
            raise Unfit(Note.of("array", array=place.name, cause=error.note)) from error
        found[place.name] = whole(layer, place) if place.name.endswith((*buffers, VARIANCE)) else layer
    return found


def whole(layer: Scaled, place: Place) -> NDArray[Any]:
    """A scaled layer as an array of the model's."""
    return layer.to(torch.float32).numpy().reshape(place.shape).astype(place.dtype, copy=False)


def row(layers: Sequence[NDArray[Any] | Scaled]) -> list[Any]:
    """A client's layers as a row of updates, over the same memory or files; nothing writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        kept = Scaled, np.memmap
        return [x if isinstance(x, kept) or not x.dtype.isnative else torch.from_numpy(x) for x in layers]


def conversion_notes(sent: Iterable[tuple[str, Converted]]) -> list[Note]:
    """One note of all clients that sent the same other dtypes than the model's."""
    groups: dict[tuple[str, str, int], list[str]] = {}
    for client, converted in sent:
        for (dtype, model), many in converted.items():
            groups.setdefault((dtype, model, many), []).append(client)
    return [
        Note.of("converted", *who, sent=dtype, model=model, many=many) for (dtype, model, many), who in groups.items()
    ]


def first(names: Iterable[str]) -> tuple[str, ...]:
    """The first three names; they come from clients, so they are cut."""
    return tuple(short(name) for name in islice(names, 3))


def fitted(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The same numbers in another dtype, or :class:`Unfit` where they are of another kind or too large for it.

    >>> fitted(np.array([1.0, 2.5]), np.dtype(np.float32))
    array([1. , 2.5], dtype=float32)
    """
    if array.dtype == dtype or not array.size:
        return array.astype(dtype, copy=False)
    if dtype.kind == "f":
        if array.dtype == np.int8:
            raise Unfit.of("array_no_scale", scale=SCALE)
        if array.dtype.kind != "f":  # an integer array would not be measured
            raise Unfit.of("array_dtype", dtype=str(array.dtype), expected="a floating")
        with np.errstate(over="ignore"):
            new = array.astype(dtype)
        lost = np.isinf(new) & np.isfinite(array)
        if lost.any():
            raise Unfit.of("array_too_large", value=float(array[lost][0]), dtype=str(dtype))
        return new
    if array.dtype.kind == "f" and not (np.isfinite(array) & (np.rint(array) == array)).all():
        raise Unfit.of("array_dtype", dtype=str(array.dtype), expected="an integer")
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for value in (int(array.min()), int(array.max())):
        if not low <= value <= high:
            raise Unfit.of("array_out_of_range", value=value, dtype=str(dtype), least=low, most=high)
    return array.astype(dtype)


def cast(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values of another dtype, rounded where it is an integer one."""
    return (values if dtype.kind == "f" else np.rint(values)).astype(dtype, copy=False)


def spelt(dtype: np.dtype[Any]) -> str:
    """A dtype's name.

    >>> spelt(np.dtype("<f4")), spelt(np.dtype(">f4"))
    ('float32', 'big-endian float32')
    """
    return dtype.name if dtype.str[0] in "<|" else f"big-endian {dtype.name}"
