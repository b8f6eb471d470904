"""Short rows that stand for long ones where all pairs of many clients are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
