"""Which columns to look at where not all are looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.stats import Norms

RUN = 16  # columns side by side, which memory hands over together


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
