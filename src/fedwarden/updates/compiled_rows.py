"""How kernels read rows: some columns of them by address, and four at a time.

Needs numba. These are parts of kernels, compiled with each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numba import carray, njit
from numpy.typing import NDArray

from .intrinsics import floats, take
from .segments import Plan

Floats = NDArray[np.float32]
Sums = NDArray[np.float64]
Index = NDArray[np.int64]
Addresses = NDArray[np.uint64]
Four = tuple[np.float32, np.float32, np.float32, np.float32]
FourRows = tuple[Floats, Floats, Floats, Floats]

FAST = {"reassoc", "contract", "nsz", "arcp"}
NONE = (np.float32(0), np.float32(0), np.float32(0), np.float32(0))


@njit(nogil=True, fastmath=FAST, inline="always")
def at(address: np.uint64, a: int, m: int) -> Floats:
    """Entries [a, a + m) of the float32 buffer at an address."""
    return carray(floats(address + np.uint64(4 * a)), (m,))


@njit(nogil=True)  # a cached generator cannot be called by another kernel
def spans(plan: Plan, turn: Index, width: int) -> Iterator[tuple[int, int, int, int]]:
    """The next columns of the groups that this thread takes, up to ``width`` of one segment at a time.

    Yields (group, segment, first column, number of columns).
    """
    group = take(turn)
    while group < plan.last:
        start, stop = max(group * plan.width, plan.start[0]), min((group + 1) * plan.width, plan.start[-1])
        segment = 0
        while plan.start[segment + 1] <= start:
            segment += 1
        while start < stop:
            end = min(stop, plan.start[segment + 1])
            while start < end:
                yield group - plan.first, segment, start, min(width, end - start)
                start += width
            start = end
            segment += 1
        group = take(turn)


@njit(nogil=True, inline="always")
def padded(rows: Addresses, index: Index) -> Addresses:
    """The rows in the index, the last one again up to a multiple of four."""
    size = (len(index) + 3) // 4 * 4
    out = np.zeros((len(rows), size), np.uint64)
    for segment in range(len(rows)):
        for k in range(size):
            out[segment, k] = rows[segment, index[min(k, len(index) - 1)]]
    return out


@njit(nogil=True, inline="always")
def weights_of(values: Sums, index: Index) -> Floats:
    """Their weights, 0 for a row that is there again."""
    out = np.zeros((len(index) + 3) // 4 * 4, np.float32)
    for k in range(len(index)):
        out[k] = np.float32(values[index[k]])
    return out


@njit(nogil=True, inline="always")
def four(x: Floats, i: int) -> Four:
    return x[i], x[i + 1], x[i + 2], x[i + 3]


@njit(nogil=True, inline="always")
def four_rows(rows: Addresses, i: int, a: int, m: int) -> FourRows:
    return at(rows[i], a, m), at(rows[i + 1], a, m), at(rows[i + 2], a, m), at(rows[i + 3], a, m)


@njit(nogil=True, fastmath=FAST, inline="always")
def entries(rows: FourRows, j: int, origin: np.float32) -> Four:
    """Entry j of four rows, less the origin."""
    return rows[0][j] - origin, rows[1][j] - origin, rows[2][j] - origin, rows[3][j] - origin


@njit(nogil=True, fastmath=FAST, inline="always")
def weighted(total: np.float32, x: Four, weights: Four) -> np.float32:
    """A sum with four weighted entries added, one after another: each is one instruction."""
    total += weights[0] * x[0]
    total += weights[1] * x[1]
    total += weights[2] * x[2]
    total += weights[3] * x[3]
    return total


@njit(nogil=True, fastmath=FAST, inline="always")
def squared(x: Four, centre: np.float32, sums: Four) -> Four:
    """Four sums of squares with those of four entries about a centre added."""
    a, b, c, d = x[0] - centre, x[1] - centre, x[2] - centre, x[3] - centre
    return sums[0] + a * a, sums[1] + b * b, sums[2] + c * c, sums[3] + d * d


@njit(nogil=True, inline="always")
def put(sums: Sums, i: int, found: Four) -> None:
    for k in range(4):
        sums[i + k] += found[k]
