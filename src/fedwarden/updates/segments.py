"""Whatever holds the numbers of some clients, as 1-D tensors over the same memory."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.notes import Note
from ..core.stats import Norms, Weights
from .sketch import Hashing

ARRAYS = (np.ndarray, Tensor)
RELEASE_BYTES = 256 << 20  # memory-mapped pages kept resident before they are given back


class Scaled:
    """A layer as int8 and what one of its units stands for: x = q s, with one scale s or one for each output row.

    Entries become numbers when they are read, and no layer is held as such. Where there is a ``fault``, which says why
    it cannot be read, all are NaN.

    >>> layer = Scaled(np.array([[1, 2], [-3, 4]], np.int8), np.array([0.5, 10.0]))
    >>> layer.to(torch.float32).tolist(), layer[1:3].to(torch.float32).tolist()
    ([0.5, 1.0, -30.0, 40.0], [1.0, -30.0])
    >>> print(Scaled(np.zeros(3, np.int8), 0.0).fault)
    has a scale of 0; expected finite numbers above 0
    """

    dtype = torch.float32

    def __init__(self, values: Any, scale: Any) -> None:
        pages: mmap.mmap | None = getattr(values, "_mmap", None)  # of a file with the values
        values, given = torch.as_tensor(values), torch.as_tensor(scale)
        self.shape, rows = tuple(values.shape), (*values.shape, 1)[0]
        self.values: Tensor = values.reshape(-1)
        self.scale: Tensor = given.reshape(-1).to(values.device, torch.float32)
        self.device, self.first, self.pages = values.device, 0, pages
        self.fault: Note | None = None
        if values.dtype != torch.int8:
            self.fault = Note.of("scaled_dtype", dtype=str(values.dtype).removeprefix("torch."))
        elif not given.is_floating_point() or len(self.scale) not in (1, rows) or not rows:
            self.fault = Note.of("scale_shape", sent=given.numel(), rows=rows)
        elif (bad := self.scale[~((self.scale > 0) & self.scale.isfinite())]).numel():
            self.fault = Note.of("scale_value", value=float(bad[0]))
        if self.fault:
            self.scale = torch.full((1,), torch.nan, device=values.device)
        self.width = max(len(self.values) // len(self.scale), 1)

    def numel(self) -> int:
        return len(self.values)

    def is_contiguous(self) -> bool:
        """No kernel can read it where it lies."""
        return False

    def __getitem__(self, part: slice) -> Scaled:
        some = copy(self)
        some.values, some.first = self.values[part], self.first + (part.start or 0)
        return some

    def to(self, dtype: torch.dtype) -> Tensor:
        """All entries as numbers."""
        if len(self.scale) == 1:
            return (self.values * self.scale).to(dtype)
        return self.index_select(0, torch.arange(len(self.values), device=self.device)).to(dtype)

    def index_select(self, dimension: int, index: Tensor) -> Tensor:
        """Some entries as numbers."""
        of_row = (index + self.first).div(self.width, rounding_mode="floor") if len(self.scale) > 1 else index * 0
        return self.values.index_select(dimension, index) * self.scale[of_row]


Layer = Tensor | Scaled
L = TypeVar("L", Tensor, Layer)


@dataclass(frozen=True)
class Segment:
    """A run of columns of all clients: one buffer each, of any shape, or one (n, stop - start) array."""

    start: int
    stop: int
    given: tuple[Layer, ...] | Tensor
    measured: bool

    def __len__(self) -> int:
        return len(self.given)

    @property
    def stack(self) -> Tensor | None:
        """All rows as one array where they came as one."""
        return self.given if isinstance(self.given, Tensor) else None

    @cached_property
    def rows(self) -> tuple[Layer, ...]:
        """1-D tensors over the same memory; made when somebody asks, since kernels need no more than addresses."""
        return self.given.unbind(0) if isinstance(self.given, Tensor) else tuple(map(flat, self.given))

    def only(self, keep: Sequence[int]) -> Segment:
        """The same columns of fewer clients."""
        return Segment(self.start, self.stop, tuple([self.given[i] for i in keep]), self.measured)

    @cached_property
    def types(self) -> frozenset[torch.dtype]:
        """The types of all rows."""
        return frozenset([self.given.dtype] if isinstance(self.given, Tensor) else [row.dtype for row in self.given])

    @property
    def in_place(self) -> bool:
        """Whether kernels for contiguous rows of float32 can read them where they lie."""
        if self.types != {torch.float32}:
            return False
        if isinstance(self.given, Tensor):
            return self.given.stride(1) == 1 or self.stop - self.start == 1
        return all(row.is_contiguous() for row in self.given)

    @property
    def addresses(self) -> NDArray[np.uint64]:
        """Where the rows lie in memory."""
        if isinstance(self.given, Tensor):
            step = self.given.stride(0) * self.given.element_size()
            return np.uint64(self.given.data_ptr()) + np.arange(len(self.given), dtype=np.uint64) * np.uint64(step)
        return np.array([row.data_ptr() for row in self.given if isinstance(row, Tensor)], np.uint64)


class Plan(NamedTuple):
    """Where kernels find the columns, and how these are shared out: in groups of so many, one thread's at a time."""

    rows: NDArray[np.uint64]
    """(segments, n): the address of each client's buffer."""
    base: NDArray[np.uint64]
    """(segments,): the address of what is subtracted there, 0 for nothing."""
    measured: NDArray[np.bool_]
    """(segments,): whether the columns enter distances."""
    start: NDArray[np.int64]
    """(segments + 1,): the columns at which the segments start, and where the last one ends."""
    width: int
    """Columns of a group, counted from column 0."""
    first: int
    """The first group."""
    last: int
    """The group after the last."""

    def grouped(self, width: int) -> Plan:
        """The same columns in groups of another width."""
        return self._replace(width=width, first=int(self.start[0]) // width, last=-(-int(self.start[-1]) // width))


class Rows(Protocol):
    """What a back end knows of the updates: where the rows lie, and how to read those that it cannot read in place."""

    n: int
    d: int
    dtype: torch.dtype
    device: torch.device
    segments: tuple[Segment, ...]
    maps: tuple[mmap.mmap, ...]
    base: Tensor | None

    def plan(self, width: int) -> Plan | None: ...

    def pieces(self) -> Iterator[tuple[Segment, int, int]]: ...

    def block(self, segment: Segment, start: int, stop: int) -> Tensor: ...

    def read_into(self, segment: Segment, start: int, stop: int, out: Tensor) -> None: ...

    def columns(self, reduce: Callable[[Tensor], Tensor]) -> Tensor: ...


class BackEnd(Protocol):
    """The folds that a back end carries out, each in one read of the rows; a module is one."""

    def survey(
        self, updates: Rows, centre: Weights, shares: Weights, spread: bool, /
    ) -> tuple[Norms, Norms, Norms, Tensor]: ...

    def weighted_sum(self, rows: Rows, weights: Weights, into: Tensor | None, scale: float, /) -> Tensor: ...

    def ranked_mean(self, updates: Rows, low: int, high: int, /) -> Tensor: ...

    def nearest_mean(self, updates: Rows, keep: int, /) -> Tensor: ...

    def gram(self, updates: Rows, origin: int, /) -> NDArray[np.float64]: ...

    def sample(self, updates: Rows, columns: NDArray[np.int64], /) -> Tensor: ...

    def sketch(self, updates: Rows, hashing: Hashing, /) -> Tensor: ...


def plan(segments: Sequence[Segment], base: Tensor | None, width: int) -> Plan:
    """All columns of the segments in groups of ``width``.

    >>> layers = Segment(8, 12, torch.zeros(2, 4), True), Segment(12, 20, torch.zeros(2, 8), False)
    >>> found = plan(layers, None, width=5)
    >>> found.start.tolist(), found.first, found.last
    ([8, 12, 20], 1, 4)
    """
    none = np.zeros(len(segments), np.uint64)
    start = np.array([*(segment.start for segment in segments), segments[-1].stop], dtype=np.int64)
    return Plan(
        rows=np.array([segment.addresses for segment in segments]),
        base=none if base is None else (base.data_ptr() + 4 * start[:-1]).astype(np.uint64),
        measured=np.array([segment.measured for segment in segments]),
        start=start,
        width=1,
        first=0,
        last=0,
    ).grouped(width)


def pieces(segments: Sequence[Segment], width: int, maps: Sequence[mmap.mmap]) -> Iterator[tuple[Segment, int, int]]:
    """Column ranges in order; memory-mapped pages are given back once enough of them have been read."""
    held = 0
    for segment in segments:
        for start in range(segment.start, segment.stop, width):
            stop = min(start + width, segment.stop)
            yield segment, start, stop
            held += stop - start
            if held >= most_columns(len(segment)):
                give_back(maps)
                held = 0


def most_columns(n: int) -> int:
    """How many columns of n memory-mapped rows may be read before their pages are given back."""
    return RELEASE_BYTES // (4 * max(n, 1))


def give_back(maps: Sequence[mmap.mmap]) -> None:
    for pages in maps if hasattr(mmap, "MADV_DONTNEED") else ():
        pages.madvise(mmap.MADV_DONTNEED)


def ranges(d: int, measured: Sequence[tuple[int, int]] | None, integer: bool) -> list[tuple[int, int, bool]]:
    """Cut [0, d) into runs that are measured or not."""
    if measured is None:
        return [(0, d, not integer)]
    cuts, at = [], 0
    for a, b in sorted(measured):
        if not at <= a <= b <= d:
            raise ValueError(f"measured ranges must be disjoint and inside [0, {d}); got ({a}, {b})")
        cuts += [(at, a, False), (a, b, True)]
        at = b
    return [(a, b, m) for a, b, m in [*cuts, (at, d, False)] if b > a]


def shifted(measured: Sequence[tuple[int, int]] | None, start: int, size: int) -> list[tuple[int, int]] | None:
    """The part of the measured ranges inside one layer, counted from its start."""
    if measured is None:
        return None
    inside = [(max(a - start, 0), min(b - start, size)) for a, b in measured]
    return [(a, b) for a, b in inside if a < b]


def layers(client: Any, maps: dict[int, mmap.mmap]) -> Sequence[Layer]:
    """One client's layers as tensors over its own buffers: contiguous ones of any shape, others 1-D."""
    if isinstance(client, Mapping):
        raise ValueError("a client is a flat array or a list of layers; got a dict: give the list of its values")
    whole = isinstance(client, (*ARRAYS, Scaled)) or (len(client) > 0 and all(np.isscalar(x) for x in client))
    given = [client] if whole else client
    found = [layer if isinstance(layer, Scaled) else tensor(layer, maps) for layer in given]
    maps |= {id(layer.pages): layer.pages for layer in found if isinstance(layer, Scaled) and layer.pages}
    return [layer if layer.is_contiguous() else flat(layer) for layer in found]


def flat(layer: L) -> L:
    """A layer as one dimension; a view costs microseconds."""
    return layer if isinstance(layer, Scaled) or layer.ndim == 1 else layer.reshape(-1)


def tensor(array: Any, maps: dict[int, mmap.mmap]) -> Tensor:
    """A tensor over the same memory; the memory map behind it, if any, is added to ``maps``."""
    if isinstance(array, Tensor):
        if array.is_complex():
            raise ValueError(f"updates must be real numbers; got dtype {array.dtype}")
        return array.detach() if array.requires_grad else array
    array = np.asanyarray(array)
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise ValueError(f"updates must be real numbers; got dtype {array.dtype}")
    if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))  # torch reads neither in place
    pages = getattr(array, "_mmap", None)
    if pages is not None and array.mode != "c":  # giving back private pages would lose what was written to them
        maps[id(pages)] = pages
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # no row is written to
        tensor: Tensor = torch.as_tensor(np.asarray(array))
        return tensor


def read_segments(
    rows: Any, measured: Sequence[tuple[int, int]] | None = None
) -> tuple[list[Segment], list[mmap.mmap]]:
    """The segments of an (n, d) array, or of clients that are flat arrays or lists of layers; and their files."""
    maps: dict[int, mmap.mmap] = {}
    if isinstance(rows, ARRAYS):
        if rows.ndim != 2:
            raise ValueError(f"updates in one array need shape (clients, parameters); got {tuple(rows.shape)}")
        stack = tensor(rows, maps)
        d = stack.shape[1]
        runs = ranges(d, measured, not stack.dtype.is_floating_point)
        return [Segment(a, b, stack if b - a == d else stack[:, a:b], m) for a, b, m in runs], list(maps.values())
    clients = [layers(client, maps) for client in rows]
    if not clients:
        raise ValueError("updates need at least one client; use Updates.empty(d) for none")
    shapes = [tuple(layer.numel() for layer in client) for client in clients]
    if len(set(shapes)) > 1:
        odd = next(i for i, shape in enumerate(shapes) if shape != shapes[0])
        raise ValueError(f"all clients need the same layers; client 0 has {shapes[0]}, client {odd} {shapes[odd]}")
    if measured is not None:
        ranges(sum(shapes[0]), measured, integer=False)  # raises where they do not fit
    segments, start = [], 0
    for layer in zip(*clients, strict=True):
        size = layer[0].numel()
        whole = Segment(start, start + size, layer, True)
        if odd_type := next((kind for kind in whole.types if kind.is_complex), None):
            raise ValueError(f"updates must be real numbers; got dtype {odd_type}")
        integer = not all(kind.is_floating_point for kind in whole.types)
        if measured is None and torch.int8 in whole.types:
            odd = next(i for i, row in enumerate(layer) if row.dtype == torch.int8)
            raise ValueError(f"client {odd} has a layer of int8 without a scale; give fedwarden.Scaled(values, scale)")
        for a, b, m in ranges(size, shifted(measured, start, size), integer):
            part = layer if b - a == size else tuple(flat(row)[a:b] for row in layer)
            segments.append(whole if m and part is layer else Segment(start + a, start + b, part, m))
        start += size
    return segments, list(maps.values())
