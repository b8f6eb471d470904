"""A model's parameters by name, as engines pass them: arrays, tensors, numbers, or references to a file on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.notes import Note
from ..models.trial import VARIANCE
from .arrays import BUFFERS, Converted, Scaled, Unfit, cast, fitted, measured_ranges, scaled, spelt

Arrays = dict[str, NDArray[Any]]
Params = Mapping[str, Any]  # of a model, as the engine holds them
ROUNDING = 1e-5  # of a variance: more than the error of adding a float32 difference back
NUMBERS = (bool, int, float, np.generic, np.ndarray)


def resolved(value: Any) -> Any:
    """The tensor that a reference to disk stands for; every other value is returned unchanged.

    A tensor from a file is mapped, not copied: its pages are read when the guard reads them.
    """
    load = getattr(value, "materialize", None)
    return load() if callable(load) else value


def read(value: Any) -> NDArray[Any]:
    """A parameter as an array of real numbers over the same memory, or :class:`Unfit`.

    >>> read(torch.tensor([1.0, 2.5], dtype=torch.bfloat16))
    array([1. , 2.5], dtype=float32)
    """
    value = resolved(value)
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_complex() or value.is_quantized:
            raise Unfit.of("array_not_real")
        value = value.detach().cpu()
        narrow = value.dtype.is_floating_point and value.dtype not in (torch.float16, torch.float32, torch.float64)
        value = (value.float() if narrow else value).numpy()  # NumPy has no bfloat16
    if not isinstance(value, NUMBERS):
        raise Unfit.of("array_not_real")
    array = value if isinstance(value, np.memmap) else np.asarray(value)
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise Unfit.of("array_not_real")
    return array if array.flags.c_contiguous else array.copy(order="C")


class Files:
    """The safetensors files that the references of one reply point to, each mapped once, so that pages can go back."""

    TYPES: ClassVar = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "I64": np.int64, "I8": np.int8}

    def __init__(self) -> None:
        self._open: dict[str, tuple[NDArray[np.uint8], dict[str, Any]]] = {}

    def read(self, value: Any) -> Any:
        """The array of a reference as it lies in its file; any other value, or of another type, is returned unchanged.

        NVIDIA FLARE's own loader maps each tensor by itself, and the pages that were read stay until it is gone.
        """
        path, key = getattr(value, "file_path", None), getattr(value, "key", None)
        if not (isinstance(path, str) and isinstance(key, str) and path.endswith(".safetensors")):
            return value
        if path not in self._open:
            whole = np.memmap(path, np.uint8, "r")
            stop = 8 + int.from_bytes(whole[:8].tobytes(), "little")
            self._open[path] = whole[stop:], json.loads(whole[8:stop].tobytes())
        data, table = self._open[path]
        if (dtype := self.TYPES.get(table[key]["dtype"])) is None:
            return value
        start, stop = table[key]["data_offsets"]
        return data[start:stop].view(dtype).reshape(table[key]["shape"])


def read_all(params: Any) -> Arrays:
    """All parameters of a model by name, or :class:`Unfit`."""
    if not isinstance(params, Mapping):
        raise Unfit.of("not_a_model", sent=type(params).__name__)
    if not params:
        raise Unfit.of("sent_nothing")
    arrays, files = Arrays(), Files()
    for name, value in params.items():
        if not isinstance(name, str):
            raise Unfit.of("not_a_model", sent=f"a name of type {type(name).__name__}")
        try:
            arrays[name] = read(files.read(value))
        except Unfit as error:
            raise Unfit(Note.of("array", array=name, cause=error.note)) from error
    return arrays


@dataclass(frozen=True)
class Slot:
    """One parameter of the model: the shape and dtype that clients must send, and the kind that the engine expects.

    ``dtype`` is NumPy's; ``kind`` is a torch dtype for a tensor, else ``"array"`` or ``"number"``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kind: torch.dtype | str = "array"

    @classmethod
    def of(cls, name: str, value: Any) -> Self:
        array, value = read(value), resolved(value)
        kind = value.dtype if isinstance(value, Tensor) else "array" if isinstance(value, np.ndarray) else "number"
        return cls(name, array.shape, array.dtype, kind)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def shaped(self, shape: tuple[int, ...]) -> Slot:
        """The same slot with another shape."""
        return replace(self, shape=shape)

    def settle(self, array: NDArray[Any]) -> NDArray[Any]:
        """A client's array in the dtype of the model, or :class:`Unfit`; narrower floats stay narrow."""
        try:
            if array.shape != self.shape:
                raise Unfit.of("array_shape", shape=array.shape, expected=self.shape)
            if array.dtype.kind == self.dtype.kind == "f" and array.dtype.itemsize < self.dtype.itemsize:
                return array
            return fitted(array, self.dtype)
        except Unfit as error:
            raise Unfit(Note.of("array", array=self.name, cause=error.note)) from error

    def wrap(self, values: NDArray[Any]) -> Any:
        """New values in the type that the engine uses for this parameter."""
        array = np.asarray(cast(values, self.dtype)).reshape(self.shape)
        if isinstance(self.kind, torch.dtype):
            return torch.from_numpy(array.copy()).to(self.kind)
        return array.copy() if self.kind == "array" else array[()]


@dataclass(frozen=True)
class Form:
    """The parameters that the clients of a round send, in the order of their flat form."""

    slots: tuple[Slot, ...]
    buffers: tuple[str, ...] = BUFFERS

    @classmethod
    def of(cls, params: Mapping[str, Any], buffers: Sequence[str] = BUFFERS) -> Self:
        return cls(tuple(Slot.of(name, value) for name, value in params.items()), tuple(buffers))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots)

    @property
    def size(self) -> int:
        return sum(slot.size for slot in self.slots)

    @property
    def measured(self) -> list[tuple[int, int]]:
        """The columns that enter distances."""
        return measured_ranges(self.slots, self.buffers)

    def settle(self, arrays: Arrays) -> tuple[list[NDArray[Any] | Scaled], Converted]:
        """A client's arrays in the model's order and dtypes, with the conversions made, or :class:`Unfit`."""
        narrow = scaled(self.slots, self.buffers, arrays, np.asarray)
        layers = [narrow[s.name] if s.name in narrow else s.settle(arrays[s.name]) for s in self.slots]
        pairs = [(arrays[slot.name].dtype, slot.dtype) for slot in self.slots]
        return layers, Converted((spelt(sent), spelt(model)) for sent, model in pairs if sent != model)

    def flatten(self, arrays: Arrays) -> Tensor:
        """A copy as one vector: float64 if all floating parameters are, else float32."""
        floating = {slot.dtype for slot in self.slots if slot.dtype.kind == "f"}
        wide = np.float64 if floating == {np.dtype(np.float64)} else np.float32
        return torch.from_numpy(
            np.concatenate([arrays[name].reshape(-1).astype(wide, copy=False) for name in self.names])
        )

    def split(self, flat: Tensor) -> Iterator[tuple[Slot, NDArray[Any]]]:
        """Each parameter with its part of a flat vector."""
        parts = flat.cpu().split([slot.size for slot in self.slots])
        return ((slot, part.numpy().reshape(slot.shape)) for slot, part in zip(self.slots, parts, strict=True))

    def whole(self, update: Tensor, base: Arrays | None) -> dict[str, Any]:
        """The new model: the update added to the last one, with no variance below zero."""
        made = {}
        for slot, part in self.split(update):
            new = part if base is None else base[slot.name] + part
            made[slot.name] = slot.wrap(np.maximum(new, 0) if slot.name.endswith(VARIANCE) else new)
        return made

    def difference(self, update: Tensor, base: Arrays | None) -> dict[str, Any]:
        """The update by name; if the model is known, clipped so that no variance falls below zero."""
        made = {}
        for slot, part in self.split(update):
            if base is not None and slot.name.endswith(VARIANCE):
                part = np.maximum(part, -base[slot.name])
            made[slot.name] = slot.wrap(part)
        return made

    def nothing(self) -> dict[str, Any]:
        """The difference that leaves the model as it is."""
        return {slot.name: slot.wrap(np.zeros(slot.shape)) for slot in self.slots}


def negative_variance(layers: Sequence[NDArray[Any] | Scaled], form: Form, base: Arrays | None) -> Note | None:
    """The reason to reject a client's arrays if they contain a negative variance, else None.

    ``base`` is given if the arrays are differences, and is added first. Rounding errors are then tolerated.
    """
    for slot, layer in zip(form.slots, layers, strict=True):
        if slot.name.endswith(VARIANCE) and isinstance(layer, np.ndarray) and layer.size:
            least = 0.0 if base is None else -ROUNDING * float(np.abs(base[slot.name]).max())
            lowest = float((layer if base is None else base[slot.name] + layer).min())
            if lowest < least:
                return Note.of("array", array=slot.name, cause=Note.of("array_variance", lowest=lowest))
    return None
