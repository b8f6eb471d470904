"""One array of a Flower message, read in place: its bytes come from a client, so its header is not believed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..core.words import short
from ..guard.arrays import Unfit, fitted

SERIALISED = "numpy.ndarray"
LARGEST_HEADER = 4096  # bytes; one of 64 dimensions takes a third of them
MOST_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32  # as in NumPy
LARGEST_ARRAY = 2**63 - 1  # bytes
SIZE = "(?:0|[1-9][0-9]{0,18})"
HEADER = re.compile(
    r"\{'descr': '(\|[iub]1|[<>](?:f[248]|[iu][248]))', 'fortran_order': (True|False), "
    rf"'shape': \((|{SIZE},|{SIZE}(?:, {SIZE})+)\),? ?\}} *\n".encode()
)


def view(array: Array) -> NDArray[Any]:
    """A read-only array over the bytes of a serialised one; its header is believed only if it fits their number.

    >>> view(Array(np.array([[1.0, 2.0]]))).tolist()
    [[1.0, 2.0]]
    """
    if array.stype != SERIALISED:
        raise Unfit.of("array_serialised", sent=short(array.stype), expected=SERIALISED)
    head = head_of(array.data)
    shape, fortran, dtype = header(head)
    size, held = math.prod(shape) * dtype.itemsize, len(array.data) - len(head)
    if size != held:
        raise Unfit.of("array_bytes", held=held, shape=shape, needed=size)
    flat = np.frombuffer(array.data, dtype, offset=len(head))
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

    def settle(self, array: Array) -> tuple[Array, np.dtype[Any]]:
        """An array as it belongs here, and the dtype that it came in; the same one where nothing is to be done."""
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
