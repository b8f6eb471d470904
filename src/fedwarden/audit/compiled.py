"""The sums of an auditor's metrics as compiled loops: a block of columns is read once, and stays in the cache.

Needs numba. :mod:`fedwarden.audit.metrics` holds the same sums in torch, which is the reference, the fallback and the
path on a GPU. Sums are in float64, a column each, so that neighbouring columns are added side by side.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..updates.intrinsics import take

WIDTH = 512  # columns of a block: their sums stay in the first-level cache, and some hundred rows in the second

Row = NDArray[np.float32]
Matrix = NDArray[np.float32]
Sums = NDArray[np.float64]
Turn = NDArray[np.int64]


@njit(nogil=True, cache=True)
def means(x: Matrix, out: Sums) -> None:
    """The mean of each column, about the first row so that equal values have it exactly."""
    first = x[0]
    out[:] = 0.0
    for i in range(1, len(x)):
        row = x[i]
        for j in range(len(first)):
            out[j] += np.float64(row[j]) - np.float64(first[j])
    for j in range(len(first)):
        out[j] = np.float64(first[j]) + out[j] / len(x)


@njit(nogil=True, cache=True)
def add_products(
    row_a: Row, row_b: Row, about_a: Sums, about_b: Sums, inner: Sums, sq_a: Sums, sq_b: Sums, sq_gap: Sums
) -> None:
    """Of each column the product of two entries about two centres, their squares, and that of their difference."""
    for j in range(len(row_a)):
        u, v = np.float64(row_a[j]) - about_a[j], np.float64(row_b[j]) - about_b[j]
        gap = u - v
        inner[j] += u * v
        sq_a[j] += u * u
        sq_b[j] += v * v
        sq_gap[j] += gap * gap


@njit(nogil=True, fastmath={"contract"}, cache=True)
def add_powers(row: Row, about: Sums, second: Sums, third: Sums, fourth: Sums, fifth: Sums) -> None:
    """Of each column the powers 2 to 5 of an entry about a centre, from one look at it."""
    for j in range(len(row)):
        u = np.float64(row[j]) - about[j]
        square = u * u
        twice = square * square
        second[j] += square
        third[j] += square * u
        fourth[j] += twice
        fifth[j] += twice * u


@njit(nogil=True, cache=True)
def add_power(row: Row, about: Sums, power: Sums, out: Sums) -> None:
    """Of each column the next power of an entry about a centre: ``power`` holds the one before."""
    for j in range(len(row)):
        power[j] *= np.float64(row[j]) - about[j]
        out[j] += power[j]


@njit(nogil=True, cache=True)
def products(a: Matrix, b: Matrix, centre: bool, known: Sums, turn: Turn, out: Sums) -> None:
    """out[g] = <a, b>, <a, a>, <b, b> and <a - b, a - b> over block g, of columns about their means if asked.

    ``known`` are those of both, unless it is empty. Behind the four stands what they are less than those of the columns
    as they are: the same of the means.
    """
    about, sums = np.zeros((2, WIDTH)), np.empty((4, WIDTH))
    g = take(turn)
    while g < len(out):
        some = slice(g * WIDTH, min((g + 1) * WIDTH, a.shape[1]))
        size = some.stop - some.start
        if centre and known.shape[1] > 0:
            about[:, :size] = known[:, some]
        elif centre:
            means(a[:, some], about[0, :size])
            means(b[:, some], about[1, :size])
        sums[:] = 0.0
        for i in range(len(a)):
            add_products(
                a[i, some], b[i, some], about[0, :size], about[1, :size],
                sums[0, :size], sums[1, :size], sums[2, :size], sums[3, :size],
            )  # fmt: skip
        for k in range(4):
            out[g, k] = sums[k, :size].sum()
        u, v = about[0, :size], about[1, :size]
        out[g, 4], out[g, 5], out[g, 6] = len(a) * (u * v).sum(), len(a) * (u * u).sum(), len(a) * (v * v).sum()
        out[g, 7] = len(a) * ((u - v) ** 2).sum()
        g = take(turn)


@njit(nogil=True, cache=True)
def moments(x: Matrix, turn: Turn, out: Sums) -> None:
    """out (k, columns): the mean of each column, and the sums of the powers 2 to k of what lies about it."""
    power = np.empty(WIDTH)
    g = take(turn)
    while g * WIDTH < x.shape[1]:
        some = slice(g * WIDTH, min((g + 1) * WIDTH, x.shape[1]))
        about = out[0, some]
        means(x[:, some], about)
        for i in range(len(x)):
            row, now = x[i, some], power[: len(about)]
            if len(out) == 5:
                add_powers(row, about, out[1, some], out[2, some], out[3, some], out[4, some])
                continue
            for j in range(len(about)):
                now[j] = np.float64(row[j]) - about[j]
            for k in range(1, len(out)):
                add_power(row, about, now, out[k, some])
        g = take(turn)
