"""The folds of updates by compiled kernels, which threads share: each reads the rows where they lie, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.stats import Norms, Weights
from .plain import sample as sample  # a handful of columns: nothing to gain
from .ranks import network
from .segments import Plan, Rows, Segment, give_back, most_columns, pieces, plan
from .threads import load_kernels, together

GROUP_BYTES = 2 << 20  # what a thread takes at a time; not fewer columns where the rows are many, so that runs are long
MAPPED_COLUMNS = 1 << 16  # the same for rows in files, which are read in longer runs
PRODUCT_COLUMNS = 1 << 15  # and for a Gram matrix, of which each group has its own
COPIED_BYTES = 16 << 20  # rows that kernels cannot read where they lie are copied in blocks of this size
PARTS_BYTES = 64 << 20  # sums of groups kept at a time


def kernels() -> ModuleType | None:
    return load_kernels("fedwarden.updates.compiled")


def survey(updates: Rows, centre: Weights, shares: Weights, spread: bool) -> tuple[Norms, Norms, Norms, Tensor]:
    """Squared norms, lengths and distances, and the weighted sum: see ``Updates.survey``."""
    total = np.empty(updates.d, np.float32)
    norms, lengths, distances = _fold(updates, "survey", (centre, shares, spread, total), (3, updates.n))
    return norms, lengths, distances, torch.from_numpy(total)


def weighted_sum(rows: Rows, weights: Weights, before: Tensor | None, scale: float) -> Tensor:
    """scale * before + sum_i weights_i x_i, with weights that are not 0."""
    out = torch.empty(rows.d, dtype=torch.float32)
    earlier, factor = (out, 0.0) if before is None else (before, scale)
    _fold(rows, "weighted_sum", (weights, earlier.numpy(), np.float32(factor), out.numpy()))
    return out


def ranked_mean(updates: Rows, low: int, high: int) -> Tensor:
    """In each column, the mean of the values of rank low to high - 1."""
    out = torch.empty(updates.d, dtype=torch.float32)
    _fold(updates, "ranked_mean", (network(updates.n, range(low, high)), low, high, out.numpy()))
    return out


def nearest_mean(updates: Rows, keep: int) -> Tensor:
    """In each column, the mean of the ``keep`` values closest to the median."""
    out = torch.empty(updates.d, dtype=torch.float32)
    _fold(updates, "nearest_mean", (network(updates.n, range(updates.n)), keep, out.numpy()))
    return out


def gram(updates: Rows, origin: int) -> NDArray[np.float64]:
    """Inner products about one of the rows, of the rows and, last, of the zero vector."""
    n = updates.n
    size = -(-n // 4) * 4
    half = _fold(updates, "gram", (origin,), (size, size), PRODUCT_COLUMNS)[:n, :n]
    found = np.zeros((n + 1, n + 1))
    place = np.arange(n)
    place[origin] = n  # the zero vector; the origin itself is zero about itself
    found[np.ix_(place, place)] = np.triu(half) + np.triu(half, 1).T
    return found


def _fold(
    updates: Rows, name: str, arguments: tuple[object, ...], shape: tuple[int, ...] = (0,), columns: int = 1024
) -> NDArray[np.float64]:
    """What a kernel makes of all columns: its sums over groups of at least so many of them, added in their order."""
    kernel: Callable[..., None] = getattr(kernels(), name)
    total = None
    for part in _plans(updates, 8 * prod(shape), columns):
        sums, turn = np.zeros((part.last - part.first, *shape)), np.array([part.first], np.int64)
        together(partial(kernel, part, turn, *arguments, sums), len(sums))
        total = sums.sum(axis=0) if total is None else total + sums.sum(axis=0)
    return np.zeros(shape) if total is None else total


def _plans(updates: Rows, size: int, columns: int) -> Iterator[Plan]:
    """All columns; in several plans where they are copied, come from files, or have sums of ``size`` bytes each."""
    n = max(updates.n, 1)
    least = max(columns, MAPPED_COLUMNS if updates.maps else 0)
    width = max(least, GROUP_BYTES // (4 * n) // 1024 * 1024)
    whole = updates.plan(width)
    if whole is None:
        for segment, start, stop in pieces(updates.segments, max(width, COPIED_BYTES // (4 * n)), updates.maps):
            block = updates.block(segment, start, stop).contiguous()
            yield plan([Segment(start, stop, block, segment.measured)], None, width)
        return
    step = PARTS_BYTES // max(size, 1)
    if updates.maps:
        step = min(step, most_columns(n) // width)
    step = max(step, 1)
    for first in range(0, whole.last, step):
        yield whole._replace(first=first, last=min(first + step, whole.last))
        if updates.maps:
            give_back(updates.maps)
