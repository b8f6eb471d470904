"""Fused CPU kernels for float32 rows: one read of memory for what torch would read three times.

Needs numba. :mod:`fedwarden.updates.plain` holds the same sums in torch, which is the reference and the fallback.
Rows are given by address, so nothing is copied and every client may own its buffers. No kernel assumes finite
numbers: a NaN or an overflow must show in the sums. Rows are taken eight or four at a time, since these loops also load
and store what the rows share; of more rows LLVM makes no vector code on ARM, for want of registers.

A kernel that threads share takes a :class:`~fedwarden.updates.segments.Plan` and ``turn``, a counter: each thread calls
it once, and inside it takes one group of columns after another until none is left. What it finds in a group goes to
that group's own place in ``parts``, so that sums do not depend on who took it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .compiled_rows import (
    FAST,
    NONE,
    Addresses,
    Floats,
    Four,
    FourRows,
    Index,
    Sums,
    at,
    entries,
    four,
    four_rows,
    padded,
    put,
    spans,
    squared,
    weighted,
    weights_of,
)
from .intrinsics import take
from .segments import Plan

LOOK_SIZE = 1 << 17  # entries looked at at a time: in the second-level cache between two looks, and long runs
SORT_SIZE = 8192  # entries sorted at a time, within the first-level cache


@njit(nogil=True, inline="always")
def _width(n: int) -> int:
    """How many columns of n rows are looked at at a time."""
    return max(512, min(8192, LOOK_SIZE // max(n, 1) // 64 * 64))


@njit(nogil=True, fastmath=FAST, inline="always")
def _one_by_one(rows: FourRows, j: int, weights: Four, total: np.float32, sums: Four) -> tuple[np.float32, Four]:
    """The same sums over entry j of four rows, each done with before the next is loaded: few registers are in use."""
    x = rows[0][j]
    total, a = total + weights[0] * x, sums[0] + x * x
    x = rows[1][j]
    total, b = total + weights[1] * x, sums[1] + x * x
    x = rows[2][j]
    total, c = total + weights[2] * x, sums[2] + x * x
    x = rows[3][j]
    total, d = total + weights[3] * x, sums[3] + x * x
    return total, (a, b, c, d)


@njit(nogil=True, fastmath=FAST, cache=True)
def _sums_of_four(
    rows: Addresses, origin: Floats, i: int, a: int, m: int, weights: Floats, add: bool, out: Floats, sq_norms: Sums
) -> None:
    """The weighted sum of four rows, put or added to out, and their squared norms, from one look at each."""
    x, w, s, zero = four_rows(rows, i, a, m), four(weights, i), NONE, np.float32(0)
    for j in range(m):
        e = entries(x, j, origin[j])
        out[j] = weighted(out[j] if add else zero, e, w)
        s = squared(e, zero, s)
    put(sq_norms, i, s)


@njit(nogil=True, fastmath=FAST, cache=True)
def _twin_sums_of_four(
    rows: Addresses, based: bool, origin: Floats, i: int, a: int, m: int, weights: Floats, others: Floats, out: Floats,
    other: Floats, sq_norms: Sums,
) -> None:  # fmt: skip
    """The same with a second sum that has weights of its own."""
    x, w, v, s, zero = four_rows(rows, i, a, m), four(weights, i), four(others, i), NONE, np.float32(0)
    for j in range(m):
        e = entries(x, j, origin[j] if based else zero)
        out[j] = weighted(out[j], e, w)
        other[j] = weighted(other[j], e, v)
        s = squared(e, zero, s)
    put(sq_norms, i, s)


@njit(nogil=True, fastmath=FAST, cache=True)
def _sums_of_eight(
    rows: Addresses, i: int, a: int, m: int, weights: Floats, add: bool, out: Floats, sq_norms: Sums
) -> None:
    """The same of eight rows without an origin."""
    x, y, w, v = four_rows(rows, i, a, m), four_rows(rows, i + 4, a, m), four(weights, i), four(weights, i + 4)
    s, t, zero = NONE, NONE, np.float32(0)
    for j in range(m):
        total, s = _one_by_one(x, j, w, out[j] if add else zero, s)
        out[j], t = _one_by_one(y, j, v, total, t)
    put(sq_norms, i, s)
    put(sq_norms, i + 4, t)


@njit(nogil=True, fastmath=FAST, cache=True)
def _distances(
    rows: Addresses, based: bool, origin: Floats, a: int, m: int, centre: Floats, sq_distances: Sums
) -> None:
    """The squared distances of the rows to a centre."""
    sq_distances[:] = 0
    for i in range(0, len(rows), 4):
        x, s = four_rows(rows, i, a, m), NONE
        for j in range(m):
            s = squared(entries(x, j, origin[j] if based else np.float32(0)), centre[j], s)
        put(sq_distances, i, s)


@njit(nogil=True, inline="always")
def _spread(part: Sums, index: Index, sq_norms: Sums, measured: bool) -> None:
    """Add squared norms to those of the rows in the index, and to their lengths where the columns are measured."""
    for k in range(len(index)):
        part[0, index[k]] += sq_norms[k]
        if measured:
            part[1, index[k]] += sq_norms[k]


@njit(nogil=True, inline="always")
def _split(centre: Sums, shares: Sums) -> tuple[Index, Index, bool]:
    """The rows that count in one of the sums, the others, and whether both sums are the same."""
    used, rest = np.empty(len(centre), np.int64), np.empty(len(centre), np.int64)
    counted, equal = 0, True
    for i in range(len(centre)):
        if centre[i] != 0 or shares[i] != 0:
            used[counted] = i
            counted += 1
        else:
            rest[i - counted] = i
        equal = equal and centre[i] == shares[i]
    return used[:counted], rest[: len(centre) - counted], equal


@njit(nogil=True, cache=True)
def survey(plan: Plan, turn: Index, centre: Sums, shares: Sums, spread: bool, total: Floats, parts: Sums) -> None:
    """The sums of :meth:`Updates.survey`: ``total``, and in ``parts`` squared norms, lengths and distances.

    Without ``spread`` there are no distances. A row that counts in neither sum is not mixed in, so that one which is
    not finite spoils only its own norm.
    """
    used, rest, equal = _split(centre, shares)
    every, width, twin = np.arange(len(centre)), _width(len(centre)), spread and not equal
    mixed, others, rows = padded(plan.rows, used), padded(plan.rows, rest), padded(plan.rows, every)
    c, s = weights_of(centre, used), weights_of(shares, used)
    norms, distances = np.zeros(len(c)), np.zeros(rows.shape[1])
    mean, zero = np.zeros(width, np.float32), np.zeros(width, np.float32)
    for group, segment, start, m in spans(plan, turn, width):
        base, a, out = plan.base[segment], start - plan.start[segment], total[start : start + m]
        origin, measured, i = at(base, a, m) if base != 0 else zero[:m], plan.measured[segment], 0
        norms[:] = 0
        if twin or len(c) == 0:
            out[:], mean[:] = 0, 0
        while not twin and base == 0 and i + 8 <= len(c):
            _sums_of_eight(mixed[segment], i, a, m, s, i > 0, out, norms)
            i += 8
        while not twin and i < len(c):
            _sums_of_four(mixed[segment], origin, i, a, m, s, i > 0, out, norms)
            i += 4
        while i < len(c):
            _twin_sums_of_four(mixed[segment], base != 0, origin, i, a, m, s, c, out, mean, norms)
            i += 4
        _spread(parts[group], used, norms, measured)
        if len(rest) > 0:
            _distances(others[segment], base != 0, origin, a, m, zero, distances)
            _spread(parts[group], rest, distances, measured)
        if spread and measured:
            _distances(rows[segment], base != 0, origin, a, m, mean if twin else out, distances)
            for k in range(len(every)):
                parts[group, 2, k] += distances[k]


@njit(nogil=True, cache=True)
def weighted_sum(
    plan: Plan, turn: Index, weights: Sums, before: Floats, scale: np.float32, out: Floats, parts: Sums
) -> None:
    """out = scale * before + sum_i weights[i] * (row_i - base); scale 0 does not read before. There are no parts."""
    every, width = np.arange(len(weights)), _width(len(weights))
    rows, w, zero = padded(plan.rows, every), weights_of(weights, every), np.zeros(width, np.float32)
    norms = np.zeros(len(w))  # they cost little, and another kernel would have to be compiled
    for _, segment, start, m in spans(plan, turn, width):
        base, a, total, i = plan.base[segment], start - plan.start[segment], out[start : start + m], 0
        origin = at(base, a, m) if base != 0 else zero[:m]
        if scale != 0:
            for j in range(m):
                total[j] = scale * before[start + j]
        while base == 0 and i + 8 <= len(w):
            _sums_of_eight(rows[segment], i, a, m, w, i > 0 or scale != 0, total, norms)
            i += 8
        while i < len(w):
            _sums_of_four(rows[segment], origin, i, a, m, w, i > 0 or scale != 0, total, norms)
            i += 4


@njit(nogil=True, inline="always")
def _runs(plan: Plan, columns: Index) -> tuple[Index, Index]:
    """Where runs of neighbouring columns of one segment begin, and at last how many columns there are; the segments."""
    starts, segments = np.empty(len(columns) + 1, np.int64), np.empty(len(columns), np.int64)
    count, segment = 0, 0
    for k in range(len(columns)):
        begins = k == 0 or columns[k] != columns[k - 1] + 1
        while plan.start[segment + 1] <= columns[k]:
            segment += 1
            begins = True
        if begins:
            starts[count], segments[count] = k, segment
            count += 1
    starts[count] = len(columns)
    return starts[: count + 1], segments[:count]


@njit(nogil=True, fastmath=FAST, cache=True)
def sample(plan: Plan, turn: Index, columns: Index, out: Floats) -> None:
    """The entries of the rows in some columns, which are given in ascending order; a thread takes a row at a time."""
    starts, segments = _runs(plan, columns)
    i = take(turn)
    while i < len(out):
        for r in range(len(segments)):
            segment, k, m = segments[r], starts[r], starts[r + 1] - starts[r]
            base, a = plan.base[segment], columns[k] - plan.start[segment]
            x, row = at(plan.rows[segment, i], a, m), out[i, k : k + m]
            for j in range(m):
                row[j] = x[j]
            if base != 0:
                less = at(base, a, m)
                for j in range(m):
                    row[j] -= less[j]
        i = take(turn)


@njit(nogil=True, cache=True)
def sketch(plan: Plan, turn: Index, signs: Floats, shifts: Index, flips: Floats, first: int, out: Floats) -> None:
    """The rows as sketches, see :class:`~fedwarden.updates.sketch.Hashing`; a thread takes a row at a time."""
    k, zero = len(signs), np.zeros(len(signs), np.float32)
    i = take(turn)
    while i < len(out):
        row = out[i]
        row[:] = 0
        for segment in range(len(plan.measured)):
            start, stop = plan.start[segment], plan.start[segment + 1]
            while plan.measured[segment] and start < stop:
                run, place = (start + first) // k, (start + first) % k
                entry, a, base = (place + shifts[run]) % k, start - plan.start[segment], plan.base[segment]
                m = min(stop - start, k - place, k - entry)
                x, origin = at(plan.rows[segment, i], a, m), at(base, a, m) if base != 0 else zero[:m]
                sign, sums, flip = signs[place : place + m], row[entry : entry + m], flips[run]
                for j in range(m):
                    sums[j] += flip * sign[j] * (x[j] - origin[j])
                start += m
        i = take(turn)


@njit(nogil=True, fastmath={"nnan", "nsz"}, cache=True)  # two instructions instead of three on ARM: rows are finite
def _sort(rows: Addresses, base: np.uint64, a: int, m: int, pairs: Index, tile: Floats) -> None:
    """Copy m columns from a into the tile and put each in order by compare and exchange."""
    for i in range(len(rows)):
        x, row = at(rows[i], a, m), tile[i]
        if base != 0:
            origin = at(base, a, m)
            for j in range(m):
                row[j] = x[j] - origin[j]
        else:
            for j in range(m):
                row[j] = x[j]
    for c in range(len(pairs)):
        low, high = tile[pairs[c, 0]], tile[pairs[c, 1]]
        for j in range(m):
            x, y = low[j], high[j]
            low[j] = x if x < y else y
            high[j] = y if x < y else x


@njit(nogil=True, cache=True)
def ranked_mean(plan: Plan, turn: Index, pairs: Index, low: int, high: int, out: Floats, parts: Sums) -> None:
    """The mean of the values of rank low to high - 1 of each column. There are no parts."""
    n, share = plan.rows.shape[1], np.float32(1 / (high - low))
    width = max(64, SORT_SIZE // n // 64 * 64)
    tile = np.empty((n, width), np.float32)
    for _, segment, start, m in spans(plan, turn, width):
        _sort(plan.rows[segment], plan.base[segment], start - plan.start[segment], m, pairs, tile)
        total = out[start : start + m]
        total[:] = 0
        for r in range(low, high):
            row = tile[r]
            for j in range(m):
                total[j] += row[j]
        for j in range(m):
            total[j] *= share


@njit(nogil=True, cache=True)
def nearest_mean(plan: Plan, turn: Index, pairs: Index, keep: int, out: Floats, parts: Sums) -> None:
    """The mean of the ``keep`` values closest to the median of each column. There are no parts."""
    n, share = plan.rows.shape[1], np.float32(1 / keep)
    width = max(64, SORT_SIZE // n // 64 * 64)
    tile = np.empty((n, width), np.float32)
    best, first = np.empty(width, np.float32), np.empty(width, np.int32)
    lower, upper = tile[(n - 1) // 2], tile[n // 2]
    for _, segment, start, m in spans(plan, turn, width):
        _sort(plan.rows[segment], plan.base[segment], start - plan.start[segment], m, pairs, tile)
        total = out[start : start + m]
        best[:] = np.inf
        for s in range(n - keep + 1):  # the closest values lie side by side: find where they start
            left, right = tile[s], tile[s + keep - 1]
            for j in range(m):
                middle = (lower[j] + upper[j]) / np.float32(2)
                far = max(middle - left[j], right[j] - middle)
                if far < best[j]:
                    best[j], first[j] = far, s
        total[:] = 0
        for r in range(n):
            row = tile[r]
            for j in range(m):
                inside = first[j] <= r and r < first[j] + keep
                total[j] += row[j] if inside else np.float32(0)
        for j in range(m):
            total[j] *= share
