"""Parts of rows that stand for the whole: some of their columns, and sketches where many clients are compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.stats import Norms

RUN = 16  # columns side by side, which memory hands over together
ALL_PAIRS = 256  # clients compared entry by entry: a round takes as long as 12 reads of the updates, and 46 at 1,000
SIZE = 8192  # entries of a sketch: cosines are off by 1 / sqrt(8192) = .011, honest ones begin at .02


class Hashing(NamedTuple):
    """To which entry of a sketch each column is added, and with which sign.

        (S x)_b = sum over columns j with h(j) = b of s_j x_j
        h(j) = (j + r_c) mod k,   s_j = t_{j mod k} u_c,   c = floor(j / k)

    r_c is a random number below k, t and u_c are random signs. A count sketch, Charikar, Chen and Farach-Colton (2002):
    <Sx, Sy> is <x, y> on average. Its variance is (|x|^2 |y|^2 + <x, y>^2) / k where runs of k columns are unlike one
    another, and at most three times that in general. Differs from the paper: one shift for a run, so that kernels add
    neighbours to neighbours. Columns of one run never meet, so where d <= k nothing is lost.
    """

    signs: NDArray[np.float32]
    """t, of the columns of each run."""
    shifts: NDArray[np.int64]
    """r, of each run."""
    flips: NDArray[np.float32]
    """u, of each run."""
    first: int = 0
    """What the first column of the rows is called here, where they hold but a part of the columns."""

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int, float]]:
        """Columns of which neighbours are added to neighbours.

        Yields the first, the one after the last, the entry and the sign that the first one has, and the run's sign.

        >>> hashing = Hashing(np.array([1, -1, 1, 1], np.float32), np.array([0, 3]), np.array([1, -1], np.float32))
        >>> list(hashing.runs(3, 7))
        [(3, 4, 3, 3, 1.0), (4, 5, 3, 0, -1.0), (5, 7, 0, 1, -1.0)]
        """
        k = len(self.signs)
        while start < stop:
            run, place = divmod(start + self.first, k)
            entry = (place + int(self.shifts[run])) % k
            m = min(stop - start, k - place, k - entry)
            yield start, start + m, entry, place, float(self.flips[run])
            start += m


def hashing(d: int, rng: np.random.Generator, size: int = SIZE) -> Hashing:
    """A hashing of d columns."""
    signs, flips = (2 * rng.integers(0, 2, m).astype(np.float32) - 1 for m in (size, -(-d // size)))
    return Hashing(signs, rng.integers(0, size, len(flips)), flips)


def spread_columns(
    measured: Sequence[tuple[int, int]], most: int, rng: np.random.Generator | None = None
) -> NDArray[np.int64]:
    """All columns of some ranges, or about ``most`` of them: a run in each of equal stretches.

    It lies at a random place there, or without ``rng`` where the stretch begins.

    >>> spread_columns([(0, 5)], most=9).tolist()
    [0, 1, 2, 3, 4]
    >>> spread_columns([(0, 100), (200, 300)], most=32)[[0, 15, 16, 31]].tolist()
    [0, 15, 200, 215]
    """
    ranges = np.array(measured, dtype=np.int64).reshape(-1, 2)
    stops = np.cumsum(ranges[:, 1] - ranges[:, 0])
    d = int(stops[-1]) if len(stops) else 0
    if d <= most:
        places = np.arange(d)
    else:
        edges = np.linspace(0, d, max(most // RUN, 1) + 1).astype(np.int64)
        last = np.maximum(edges[1:] - RUN, edges[:-1])
        first = edges[:-1] if rng is None else rng.integers(edges[:-1], last, endpoint=True)
        places = (first[:, None] + np.arange(min(RUN, d))).reshape(-1)
    inside = np.searchsorted(stops, places, side="right")
    return np.asarray(places - stops[inside] + ranges[inside, 1], dtype=np.int64)


def coarse_lengths(lengths: Norms) -> str:
    """The lengths of all updates, each to one part in fifty: a seed that no client knows before all have sent theirs.

    It is coarse enough to be the same where sums are added in another order.

    >>> coarse_lengths(np.array([1.0, 1.001, 2.0, 0.0]))
    '0 0 35 -35460'
    """
    return " ".join(f"{round(50 * math.log(max(length, 1e-308)))}" for length in lengths)


def nearest_to_median(rows: NDArray[np.floating], index: NDArray[np.int_]) -> int:
    """Of these rows the one nearest to their median in each column; what is no number is left aside.

    >>> nearest_to_median(np.array([[0.0, 9.0], [1.0, 1.0], [2.0, 2.0], [np.nan, 0.0]]), np.arange(4))
    1
    """
    some = rows[index]
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(some.sum(axis=1))
        if not finite.any():
            return int(index[0])
        middle = finite.sum() // 2
        usual = np.partition(some[finite], middle, axis=0)[middle]
        return int(index[np.where(finite, np.square(some - usual).sum(axis=1), np.inf).argmin()])
