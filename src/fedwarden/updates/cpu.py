"""The folds of updates by compiled kernels, which threads share: each reads the rows where they lie, once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.stats import Norms, Weights
from . import plain
from .plain import sample as sample
from .ranks import network
from .segments import RELEASE_BYTES, Plan, Rows, Segment, give_back, most_columns, pieces, plan
from .sketch import ALL_PAIRS, Hashing

GROUP_BYTES = 2 << 20  # what a thread takes at a time; not fewer columns where the rows are many, so that runs are long
MAPPED_COLUMNS = 1 << 16  # the same for rows in files, which are read in longer runs
SHARED = 8  # groups of rows in files, at least, before their pages are given back
PRODUCT_COLUMNS = 1 << 15  # and for a Gram matrix, of which each group has its own
SKETCH_COLUMNS = 1 << 11  # the same of more rows than are compared as they are: threads share sketches of 8,192
COPIED_BYTES = 16 << 20  # rows that kernels cannot read where they lie are copied in blocks of this size
PARTS_BYTES = 64 << 20  # sums of groups kept at a time
HELPERS = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="fedwarden")  # a thread starts when it is first needed


@cache
def kernels() -> Any:
    """The module of compiled loops, imported on first use; None where numba is not installed."""
    return import_module("fedwarden.updates.compiled") if find_spec("numba") else None


def together(work: Callable[[], object], most: int) -> None:
    """Run the same work on as many threads as torch would use, at most ``most``; the work shares itself out.

    What no helper has begun by the end has nothing left to do, so that nobody waits for a busy one.

    >>> left = [1, 2, 3, 4]
    >>> together(lambda: [left.pop() for _ in range(4) if left], most=2)
    >>> left
    []
    """
    helping = [HELPERS.submit(work) for _ in range(min(torch.get_num_threads(), most) - 1)]
    try:
        work()
    finally:
        for helper in helping:
            if not helper.cancel():
                helper.result()


def survey(
    updates: Rows, centre: Weights, shares: Weights, spread: bool, into: Tensor | None = None, scale: float = 0.0
) -> tuple[Norms, Norms, Norms, Tensor]:
    """Squared norms, lengths and distances, and the weighted sum, see ``Updates.survey``, added to scale * into."""
    total = torch.empty(updates.d, dtype=torch.float32) if into is None else into
    arguments = (centre, shares, spread, np.float32(0.0 if into is None else scale), total.numpy())
    (sums,) = _fold(updates, "survey", arguments, [(3, updates.n)])
    return sums[0], sums[1], sums[2], total


def weighted_sum(rows: Rows, weights: Weights, into: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """sum_i weights_i x_i, with weights that are not 0; added to ``scale`` times ``into``, in its memory, if given."""
    return survey(rows, weights, weights, False, into, scale)[3]


def ranked_mean(updates: Rows, low: int, high: int) -> Tensor:
    """In each column, the mean of the values of rank low to high - 1."""
    return _ordered_mean(updates, range(low, high), low, high - low)


def nearest_mean(updates: Rows, keep: int) -> Tensor:
    """In each column, the mean of the ``keep`` values closest to the median."""
    return _ordered_mean(updates, range(updates.n), -1, keep)


def _ordered_mean(updates: Rows, ranks: range, low: int, keep: int) -> Tensor:
    out = np.empty(updates.d, np.float32)
    _fold(updates, "ordered_mean", (network(updates.n, ranks), low, keep, out))
    return torch.from_numpy(out)


def sketch(updates: Rows, hashing: Hashing) -> Tensor:
    """The rows as sketches, over the measured columns; of files a few rows at a time."""
    whole = updates.plan(PRODUCT_COLUMNS)
    if whole is None:
        return plain.sketch(updates, hashing)
    out = torch.empty(updates.n, len(hashing.signs))
    step = max(1, RELEASE_BYTES // (4 * updates.d)) if updates.maps else updates.n
    for i in range(0, updates.n, step):
        some, part = whole._replace(rows=np.ascontiguousarray(whole.rows[:, i : i + step])), out[i : i + step]
        together(partial(kernels().sketch, some, np.zeros(1, np.int64), *hashing, part.numpy()), len(part))
        give_back(updates.maps)
    return out


def gram(updates: Rows, origin: int) -> NDArray[np.float64]:
    """Inner products about one of the rows, of the rows and, last, of the zero vector."""
    return survey_and_gram(updates, np.zeros(updates.n), origin, summed=False)[3]


def survey_and_gram(
    updates: Rows, shares: Weights, origin: int, summed: bool = True
) -> tuple[Norms, Norms, Tensor, NDArray[np.float64]]:
    """Squared norms, lengths, the weighted sum if asked, and the inner products about a row, from one read."""
    n, total = updates.n, np.empty(updates.d if summed else 0, np.float32)
    columns, edge = PRODUCT_COLUMNS if n <= ALL_PAIRS else SKETCH_COLUMNS, -(-n // 4) * 4
    (norms, lengths), half = _fold(updates, "gram", (shares, origin, total), [(2, n), (edge, edge)], columns)
    found = np.zeros((n + 1, n + 1))
    found[:n, :n] = (np.triu(half) + np.triu(half, 1).T)[:n, :n]
    found[n], found[:, n] = found[origin], found[:, origin]  # in its place was the zero vector
    found[n, n] = found[origin, origin]
    found[origin], found[:, origin] = 0.0, 0.0  # the origin itself is zero about itself
    return norms, lengths, torch.from_numpy(total), found


def _fold(
    updates: Rows,
    name: str,
    arguments: tuple[object, ...],
    shapes: Sequence[tuple[int, ...]] = ((0,),),
    columns: int = 1024,
) -> list[NDArray[np.float64]]:
    """What a kernel makes of all columns: its sums over groups of at least so many of them, added in their order."""
    kernel, totals = getattr(kernels(), name), [np.zeros(shape) for shape in shapes]
    for part in _plans(updates, 8 * sum(map(prod, shapes)), columns):
        sums = [np.zeros((part.last - part.first, *shape)) for shape in shapes]
        turn = np.array([part.first], np.int64)
        together(partial(kernel, part, turn, *arguments, *sums), part.last - part.first)
        totals = [total + found.sum(axis=0) for total, found in zip(totals, sums, strict=True)]
    return totals


def _plans(updates: Rows, size: int, columns: int) -> Iterator[Plan]:
    """All columns; in several plans where they are copied, come from files, or have sums of ``size`` bytes each."""
    n = max(updates.n, 1)
    least = max(columns, MAPPED_COLUMNS) if updates.maps else columns
    width = max(least, GROUP_BYTES // (4 * n) // 1024 * 1024)
    if updates.maps:  # many rows are given back so often that each thread needs a group of its own until then
        width = max(1024, min(width, most_columns(n) // SHARED // 1024 * 1024))
    whole = updates.plan(width)
    if whole is None:
        room = torch.empty(n * max(width, COPIED_BYTES // (4 * n)))  # used again: fresh blocks would stay in the heap
        for segment, start, stop in pieces(updates.segments, len(room) // n, updates.maps):
            block = room[: updates.n * (stop - start)].view(updates.n, stop - start)
            updates.read_into(segment, start, stop, block)
            yield plan([Segment(start, stop, block, segment.measured)], None, width)
        return
    step = max(1, min(PARTS_BYTES // max(size, 1), most_columns(n) // width if updates.maps else whole.last))
    for first in range(0, whole.last, step):
        yield whole._replace(first=first, last=min(first + step, whole.last))
        give_back(updates.maps)
