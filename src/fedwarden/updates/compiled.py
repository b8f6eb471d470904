"""Fused CPU kernels for float32 rows: one read of memory for what torch would read three times.

Needs numba. :mod:`fedwarden.updates.plain` holds the same sums in torch, which is the reference and the fallback.
Rows are given by address, so nothing is copied and every client may own its buffers. No kernel assumes finite
numbers: a NaN or an overflow must show in the sums. Rows are taken four at a time, since these loops also load and
store what the rows share; of more rows LLVM makes no vector code on ARM, for want of registers.

A kernel that threads share takes a :class:`~fedwarden.updates.segments.Plan` and ``turn``, a counter: each thread calls
it once, and inside it takes one group of columns after another until none is left. What it finds in a group goes to
that group's own place in ``parts``, so that sums do not depend on who took it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numba import carray, njit
from numpy.typing import NDArray

from .intrinsics import floats, take, widest
from .segments import Plan

Floats = NDArray[np.float32]
Sums = NDArray[np.float64]
Index = NDArray[np.int64]
Addresses = NDArray[np.uint64]
Four = tuple[np.float32, np.float32, np.float32, np.float32]
FourRows = tuple[Floats, Floats, Floats, Floats]

FAST = {"reassoc", "contract", "nsz", "arcp"}
NONE = (np.float32(0), np.float32(0), np.float32(0), np.float32(0))
LOOK_SIZE = 1 << 17  # entries looked at at a time: in the second-level cache between two looks, and long runs
SORT_SIZE = 8192  # entries sorted at a time, within the first-level cache
ROWS, WIDTH = 64, 1024  # clients and columns at a time where every row meets every other, in the second-level cache
LINE = 16  # float32 numbers of a line of the cache


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
    return rows[:, index[np.minimum(np.arange((len(index) + 3) // 4 * 4), len(index) - 1)]]


@njit(nogil=True, inline="always")
def weights_of(values: Sums, index: Index) -> Floats:
    """Their weights, 0 for a row that is there again."""
    out = np.zeros((len(index) + 3) // 4 * 4, np.float32)
    out[: len(index)] = values[index]
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


@njit(nogil=True, inline="always")
def _width(n: int) -> int:
    """How many columns of n rows are looked at at a time."""
    return max(512, min(8192, LOOK_SIZE // max(n, 1) // 64 * 64))


@njit(nogil=True, fastmath=FAST, cache=True)
def _sums_of_four(
    rows: Addresses, based: bool, origin: Floats, i: int, a: int, m: int, weights: Floats, others: Floats, out: Floats,
    other: Floats, sq_norms: Sums,
) -> None:  # fmt: skip
    """Add two weighted sums of four rows to out and other, and put their squared norms, from one look at each."""
    x, w, v, s, zero = four_rows(rows, i, a, m), four(weights, i), four(others, i), NONE, np.float32(0)
    for j in range(m):
        e = entries(x, j, origin[j] if based else zero)
        out[j] = weighted(out[j], e, w)
        other[j] = weighted(other[j], e, v)
        s = squared(e, zero, s)
    put(sq_norms, i, s)


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
    part[0][index] += sq_norms[: len(index)]
    if measured:
        part[1][index] += sq_norms[: len(index)]


@njit(nogil=True, cache=True)
def survey(
    plan: Plan, turn: Index, centre: Sums, shares: Sums, spread: bool, scale: np.float32, total: Floats, parts: Sums
) -> None:
    """The sums of :meth:`Updates.survey`: ``total``, and in ``parts`` squared norms, lengths and distances.

    The sum is added to ``scale`` times what ``total`` holds. Without ``spread`` there are no distances. A row that
    counts in neither sum is not mixed in, so that one which is not finite spoils only its own norm.
    """
    some = (centre != 0) | (shares != 0)
    used, rest = np.flatnonzero(some), np.flatnonzero(~some)
    every, width = np.arange(len(centre)), _width(len(centre))
    mixed, others, rows = padded(plan.rows, used), padded(plan.rows, rest), padded(plan.rows, every)
    c, s = weights_of(centre, used), weights_of(shares, used)
    norms, distances = np.zeros(len(c)), np.zeros(rows.shape[1])
    mean, zero = np.zeros(width, np.float32), np.zeros(width, np.float32)
    for group, segment, start, m in spans(plan, turn, width):
        base, a, out = plan.base[segment], start - plan.start[segment], total[start : start + m]
        origin, measured = at(base, a, m) if base != 0 else zero[:m], plan.measured[segment]
        norms[:], mean[:] = 0, 0
        if scale == 0:
            out[:] = 0
        else:
            out *= scale
        for i in range(0, len(c), 4):
            _sums_of_four(mixed[segment], base != 0, origin, i, a, m, s, c, out, mean, norms)
        _spread(parts[group], used, norms, measured)
        if len(rest) > 0:
            _distances(others[segment], base != 0, origin, a, m, zero, distances)
            _spread(parts[group], rest, distances, measured)
        if spread and measured:
            _distances(rows[segment], base != 0, origin, a, m, mean, distances)
            parts[group, 2] += distances[: len(every)]


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
def ordered_mean(plan: Plan, turn: Index, pairs: Index, low: int, keep: int, out: Floats, parts: Sums) -> None:
    """The mean of ``keep`` values of each column that lie side by side in order. There are no parts.

    They begin at rank ``low``; where that is negative, they are those closest to the median.
    """
    n, share = plan.rows.shape[1], np.float32(1 / keep)
    width = max(64, SORT_SIZE // n // 64 * 64)
    tile = np.empty((n, width), np.float32)
    best, first = np.empty(width, np.float32), np.full(width, low, np.int32)
    lower, upper = tile[(n - 1) // 2], tile[n // 2]
    ranks = range(low, low + keep) if low >= 0 else range(n)
    for _, segment, start, m in spans(plan, turn, width):
        _sort(plan.rows[segment], plan.base[segment], start - plan.start[segment], m, pairs, tile)
        total = out[start : start + m]
        best[:] = np.inf
        for s in range(n - keep + 1 if low < 0 else 0):
            left, right = tile[s], tile[s + keep - 1]
            for j in range(m):
                middle = (lower[j] + upper[j]) / np.float32(2)
                far = max(middle - left[j], right[j] - middle)
                if far < best[j]:
                    best[j], first[j] = far, s
        total[:] = 0
        for r in ranks:
            row = tile[r]
            for j in range(m):
                inside = first[j] <= r and r < first[j] + keep
                total[j] += row[j] if inside else np.float32(0)
        total *= share


@njit(nogil=True, inline="always")
def _tile(rows: int) -> Floats:
    """Zeros that begin with a line of the cache: a load that crosses two takes twice the time where it fills one."""
    flat = np.zeros(rows * WIDTH + LINE, np.float32)
    start = -(flat.ctypes.data // 4) % LINE
    return flat[start : start + rows * WIDTH].reshape(rows, WIDTH)


@njit(nogil=True, fastmath=FAST, cache=True)
def _four_about(
    rows: Addresses, based: bool, base: Floats, centre: Floats, i: int, a: int, m: int, weights: Floats, out: Floats,
    sq_norms: Sums, tile: Floats,
) -> None:  # fmt: skip
    """Put four rows about a centre into the tile, add their weighted sum, less the base, to out, and squared norms."""
    widest()
    x, w, s, zero = four_rows(rows, i, a, m), four(weights, i), NONE, np.float32(0)
    p, q, r, t = tile[i], tile[i + 1], tile[i + 2], tile[i + 3]
    for j in range(m):
        e = entries(x, j, base[j] if based else zero)
        out[j] = weighted(out[j], e, w)
        s = squared(e, zero, s)
        p[j], q[j], r[j], t[j] = entries(x, j, centre[j])
    put(sq_norms, i, s)


@njit(nogil=True, fastmath=FAST, cache=True)
def _add(rows: Addresses, base: Floats, i: int, a: int, m: int, weight: np.float32, out: Floats) -> None:
    """Add one row, less the base, to out."""
    x = at(rows[i], a, m)
    for j in range(m):
        out[j] += weight * (x[j] - base[j])


@njit(nogil=True, fastmath=FAST, cache=True)
def _products(tile: Floats, i: int, k: int, m: int, out: Sums) -> None:
    """Add the 16 inner products of rows i to i+3 with rows k to k+3 over m columns."""
    widest()
    a, b, c, d = tile[i], tile[i + 1], tile[i + 2], tile[i + 3]
    e, f, g, h = tile[k], tile[k + 1], tile[k + 2], tile[k + 3]
    zero = np.float32(0)
    ae, af, ag, ah, be, bf, bg, bh = zero, zero, zero, zero, zero, zero, zero, zero
    ce, cf, cg, ch, de, df, dg, dh = zero, zero, zero, zero, zero, zero, zero, zero
    for j in range(m):
        p, q, r, s = a[j], b[j], c[j], d[j]
        t, u, v, w = e[j], f[j], g[j], h[j]
        ae += p * t
        af += p * u
        ag += p * v
        ah += p * w
        be += q * t
        bf += q * u
        bg += q * v
        bh += q * w
        ce += r * t
        cf += r * u
        cg += r * v
        ch += r * w
        de += s * t
        df += s * u
        dg += s * v
        dh += s * w
    for x, row in enumerate(((ae, af, ag, ah), (be, bf, bg, bh), (ce, cf, cg, ch), (de, df, dg, dh))):
        for y in range(4):
            out[i + x, k + y] += row[y]


@njit(nogil=True, cache=True)
def _pairs(tile: Floats, m: int, out: Sums) -> None:
    """Add the inner products of the rows of the tile over m columns, those on and above the diagonal."""
    size = len(tile)
    for top in range(0, size, ROWS):
        for left in range(top, size, ROWS):
            for i in range(top, min(top + ROWS, size), 4):
                for k in range(max(i, left), min(left + ROWS, size), 4):
                    _products(tile, i, k, m, out)


@njit(nogil=True, cache=True)
def gram(plan: Plan, turn: Index, shares: Sums, origin: int, total: Floats, parts: Sums, products: Sums) -> None:
    """The inner products of the rows and of the base, all about row ``origin``, over the measured columns.

    That row is zero about itself, so the base (zero where there is none) has its place. There are products up to a
    multiple of four rows, of which only the blocks on and above the diagonal are filled. ``parts`` gets squared norms
    and lengths, ``total`` (unless it is empty) the sum weighted by ``shares``: a row without a share is not mixed in.
    """
    n, size = plan.rows.shape[1], products.shape[1]
    every, norms, together = np.arange(n), np.zeros(size), shares.all()
    rows, weights = padded(plan.rows, every), weights_of(shares, every)
    tile, zero, unused = _tile(size), np.zeros(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    for group, segment, start, m in spans(plan, turn, WIDTH):
        base, a, measured = plan.base[segment], start - plan.start[segment], plan.measured[segment]
        less, centre = at(base, a, m) if base != 0 else zero[:m], at(rows[segment, origin], a, m)
        out = total[start : start + m] if len(total) > 0 else unused[:m]
        out[:], norms[:] = 0, 0
        for i in range(0, size, 4):
            _four_about(
                rows[segment], base != 0, less, centre, i, a, m, weights, out if together else unused[:m], norms, tile
            )
        for i in range(0 if together else n):
            if shares[i] != 0:
                _add(rows[segment], less, i, a, m, weights[i], out)
        _spread(parts[group], every, norms, measured)
        if measured:
            tile[origin, :m] = less - centre
            _pairs(tile, m, products[group])
