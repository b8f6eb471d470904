"""Whatever holds the numbers of some clients, as 1-D tensors over the same memory."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """A run of columns: one 1-D buffer per client, and the stacked view of them where there is one."""

    start: int
    stop: int
    rows: tuple[Tensor, ...]
    stack: Tensor | None
    measured: bool

    @cached_property
    def in_place(self) -> bool:
        """Whether kernels for contiguous float32 can read the rows where they lie."""
        some = self.rows if self.stack is None else self.rows[:1]  # the rows of a stack are alike
        return all(row.dtype == torch.float32 and row.is_contiguous() for row in some)

    @cached_property
    def addresses(self) -> NDArray[np.uint64]:
        return addresses(self.rows)


def addresses(rows: Sequence[Tensor]) -> NDArray[np.uint64]:
    """Where the rows lie in memory."""
    return np.array([row.data_ptr() for row in rows], dtype=np.uint64)


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


def layers(client: Any, maps: dict[int, mmap.mmap]) -> list[Tensor]:
    """One client's layers as 1-D tensors over its own buffers."""
    whole = isinstance(client, np.ndarray | Tensor) or (len(client) > 0 and all(np.isscalar(x) for x in client))
    found = [tensor(layer, maps) for layer in ([client] if whole else client)]
    return [layer if layer.ndim == 1 else layer.reshape(-1) for layer in found]  # a view costs a microsecond


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
