"""The arrays behind the figures: grids of rounds x clients brought to a scale and to a size that a screen shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.stats import robust_z
from ..store.series import Grid, WatchSeries

POINTS = 400  # of a line that a screen shows
ABOVE = 2.0  # times as far from the median client as the limit: where a scale of both ends


def to_limit(watch: WatchSeries) -> Grid:
    """Scores on a scale that all watches share: 0 at the round's median client and 1 at its limit.

    r_ij = (s_ij - median_j s_ij) / (tau_i - median_j s_ij);   NaN where there is no limit above the median
    """
    (middle,) = quantiles(watch.scores, 0.5)
    span = finite(watch.threshold) - middle
    return np.asarray((watch.scores - middle[:, None]) / np.where(span > 0, span, np.nan)[:, None], dtype=np.float64)


def nearness(watch: WatchSeries) -> Grid:
    """The same, with 2 for who was flagged by a limit that is no higher than the median client.

    >>> flagged, limits = np.array([[False, False, True]]), np.array([0.0])
    >>> scores = np.array([[0.0, 0.0, 3.0]])
    >>> nearness(WatchSeries("far", scores, scores, flagged, limits, {})).tolist()
    [[nan, nan, 2.0]]
    """
    near = to_limit(watch)
    return np.where(np.isnan(near) & watch.flagged, ABOVE, near)


def steady(x: Grid, y: Grid) -> tuple[Grid, Grid]:
    """Maps of several rounds, each turned and mirrored to lie on the last known places of its clients.

        Q = argmin ||M Q - L||_F over Q'Q = I,   Q = U V' of the singular value decomposition of M'L

    M are the places of the clients that have one in both, L their last known ones, both about their means.

    >>> x, y = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 2.0]]), np.array([[0.0, 0.0, 2.0], [0.0, -1.0, 0.0]])
    >>> [np.abs(part.round(6)).tolist() for part in steady(x, y)]  # the second round is the first one, turned
    [[[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]], [[0.0, 0.0, 2.0], [0.0, 0.0, 2.0]]]
    """
    points = np.stack([x, y], axis=-1)
    out, last = points.copy(), np.full(points.shape[1:], np.nan)
    for row, here in zip(out, points, strict=True):
        there = np.isfinite(here).all(axis=1)
        both = there & np.isfinite(last).all(axis=1)
        if both.sum() > 1:
            about, known = here[both].mean(axis=0), last[both].mean(axis=0)
            left, _, right = np.linalg.svd((here[both] - about).T @ (last[both] - known))
            row[there] = (here[there] - about) @ (left @ right) + known
        last[there] = row[there]
    return out[..., 0], out[..., 1]


def line(rounds: NDArray[np.int64], values: NDArray[Any], **by_round: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """A line over rounds with what else is known by round; of many, the lowest and highest value of neighbours.

    >>> found = line(np.arange(1, 2001), np.where(np.arange(2000) == 777, 5.0, 1.0))
    >>> len(found["x"]) <= POINTS, float(found["y"].max()), int(found["x"][-1])
    (True, 5.0, 2000)
    """
    keep, n = np.arange(len(rounds)), len(rounds)
    if n > POINTS:
        step = -(-2 * n // (POINTS - 2))
        blocks = np.append(values.astype(np.float64), np.full(-n % step, np.nan)).reshape(-1, step)
        low, high = (np.where(np.isnan(blocks), empty, blocks) for empty in (np.inf, -np.inf))
        at = np.stack([low.argmin(axis=1), high.argmax(axis=1)]) + step * np.arange(len(blocks))
        keep = np.unique([0, *at.clip(max=n - 1).ravel(), n - 1])
    return {name: column[keep] for name, column in {"x": rounds, "y": values, **by_round}.items()}


def robust_rows(grid: Grid) -> Grid:
    """The robust z of every client among those of its round.

    >>> robust_rows(np.array([[1.0, 2.0, np.nan, 3.0]])).round(6).tolist()
    [[-1.0, 0.0, nan, 1.0]]
    """
    out = np.full(grid.shape, np.nan)
    for row, values in zip(out, grid, strict=True):
        sound = np.isfinite(values)
        row[sound] = robust_z(values[sound])
    return out


def pool_highest(grid: Grid, step: tuple[int, int]) -> tuple[Grid, NDArray[np.int64]]:
    """The highest value of every block of cells, NaN where all are, and the row that it stands in.

    >>> pool_highest(np.array([[1.0, np.nan], [3.0, 2.0], [np.nan, np.nan]]), (2, 2))[0].tolist()
    [[3.0], [nan]]
    """
    rows, columns = (-(-size // by) for size, by in zip(grid.shape, step, strict=True))
    wide = np.full((rows * step[0], columns * step[1]), -np.inf)
    wide[: grid.shape[0], : grid.shape[1]] = np.where(np.isnan(grid), -np.inf, grid)
    blocks = wide.reshape(rows, step[0], columns, step[1]).transpose(0, 2, 1, 3).reshape(rows, columns, -1)
    at = blocks.argmax(axis=-1)
    highest = np.take_along_axis(blocks, at[..., None], axis=-1)[..., 0]
    return np.where(np.isneginf(highest), np.nan, highest), at // step[1] + step[0] * np.arange(rows)[:, None]


def pool_all(mask: NDArray[np.bool_], step: tuple[int, int]) -> NDArray[np.bool_]:
    """Blocks in which every cell is marked."""
    return np.asarray(pool_highest(np.where(mask, 0.0, 1.0), step)[0] == 0)


def ranges(names: Sequence[str], step: int, between: str = " to ") -> list[str]:
    """Names of blocks of neighbours.

    >>> ranges(["1", "2", "3"], 2)
    ['1 to 2', '3']
    """
    blocks = [names[i : i + step] for i in range(0, len(names), step)]
    return [b[0] if len(b) == 1 else f"{b[0]}{between}{b[-1]}" for b in blocks]


def quantiles(values: Grid, *shares: float) -> list[NDArray[np.float64]]:
    """Quantiles of every round over the clients that have a value, linear between two of them; NaN where none has.

    >>> [q.tolist() for q in quantiles(np.array([[3.0, 1.0, np.nan], [np.nan] * 3]), 0.5, 1.0)]
    [[2.0, nan], [3.0, nan]]
    """
    ordered, found = np.sort(values, axis=1), []  # NaN comes last
    last = np.maximum(np.isfinite(values).any(axis=1) * (~np.isnan(values)).sum(axis=1) - 1, 0)
    for share in shares:
        at = share * last
        low, high = (np.take_along_axis(ordered, f(at).astype(int)[:, None], 1)[:, 0] for f in (np.floor, np.ceil))
        part = at - np.floor(at)
        with np.errstate(invalid="ignore"):
            mixed = low + part * (high - low)
        found.append(np.where(np.isfinite(values).any(axis=1), np.where(part == 0, low, mixed), np.nan))
    return found


def finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isfinite(values), values, np.nan)


def top(values: NDArray[np.float64]) -> float:
    """The highest finite value; 0 of none."""
    sound = values[np.isfinite(values)]
    return float(sound.max()) if sound.size else 0.0
