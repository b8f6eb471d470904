"""Fused CPU kernels for float32 rows: one read of memory for what torch would read three times.

Needs numba. :mod:`fedwarden.core.updates` holds the same sums in torch, which is the reference, the fallback and the
path on a GPU. Rows are given by address, so nothing is copied and every client may own its buffers. No kernel assumes
finite numbers: a NaN or an overflow must show in the sums. Rows are taken four or two at a time, since the cost of
these loops is in loading and storing what the rows share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

WIDTH = 512  # columns at a time: the shared vectors and the rows stay in the caches between two looks
WIDE = 2048  # columns at a time where there is one look: long runs suit the prefetcher
PRODUCT_WIDTH = 512  # columns at a time where every row meets every other, out of the second-level cache
SORT_SIZE = 8192  # entries sorted at a time, within the first-level cache
FAST = {"reassoc", "contract", "nsz", "arcp"}


@intrinsic
def _floats(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.uint64), codegen


@njit(nogil=True, fastmath=FAST, inline="always")
def _at(address, a, m):
    """Entries [a, a + m) of the float32 buffer at an address."""
    return carray(_floats(address + np.uint64(4 * a)), (m,))


@njit(nogil=True, fastmath=FAST, cache=True)
def _mix(rows, origin, a, m, weights, out):
    """out += sum_i weights[i] * (row_i - origin) over m columns from a; rows of weight 0 are not read."""
    used = np.flatnonzero(weights)
    n, i = len(used), 0
    while i + 4 <= n:
        p, q, r, s = used[i], used[i + 1], used[i + 2], used[i + 3]
        wp, wq, wr, ws = weights[p], weights[q], weights[r], weights[s]
        xp, xq, xr, xs = _at(rows[p], a, m), _at(rows[q], a, m), _at(rows[r], a, m), _at(rows[s], a, m)
        for j in range(m):
            o = origin[j]
            out[j] += (wp * (xp[j] - o) + wq * (xq[j] - o)) + (wr * (xr[j] - o) + ws * (xs[j] - o))
        i += 4
    while i < n:
        w, x = weights[used[i]], _at(rows[used[i]], a, m)
        for j in range(m):
            out[j] += w * (x[j] - origin[j])
        i += 1


@njit(nogil=True, inline="always")
def _four(n, i):
    """Rows i to i + 3, the last one again where there are no more, and whether each is a new one."""
    last = n - 1
    rows = (i, min(i + 1, last), min(i + 2, last), min(i + 3, last))
    return rows, (True, i + 1 <= last, i + 2 <= last, i + 3 <= last)


@njit(nogil=True, inline="always")
def _add(sums, rows, new, values):
    """Add the four values where their rows are new."""
    for k in range(4):
        if new[k]:
            sums[rows[k]] += values[k]


def _first_pass(based, twin):
    """A kernel for weighted sums of the rows and their squared norms, from one look at each row.

    ``based``: the rows have a base to subtract; ``twin``: there is a second sum with weights of its own.
    """

    @njit(nogil=True, fastmath=FAST, cache=True)
    def kernel(rows, base, a, m, first, second, out, other, sq_norms):
        n, zero = len(rows), np.float32(0)
        origin = _at(base if based else rows[0], a, m)
        for i in range(0, n, 4):
            (p, q, r, s), new = _four(n, i)
            w, x, y, z = _at(rows[p], a, m), _at(rows[q], a, m), _at(rows[r], a, m), _at(rows[s], a, m)
            wp, wq = first[p], first[q] if new[1] else zero
            wr, ws = first[r] if new[2] else zero, first[s] if new[3] else zero
            vp, vq = second[p], second[q] if new[1] else zero
            vr, vs = second[r] if new[2] else zero, second[s] if new[3] else zero
            e, f, g, h = zero, zero, zero, zero
            for j in range(m):
                o = origin[j] if based else zero
                b, c, d, k = w[j] - o, x[j] - o, y[j] - o, z[j] - o
                out[j] += (wp * b + wq * c) + (wr * d + ws * k)
                if twin:
                    other[j] += (vp * b + vq * c) + (vr * d + vs * k)
                e += b * b
                f += c * c
                g += d * d
                h += k * k
            _add(sq_norms, (p, q, r, s), new, (e, f, g, h))

    return kernel


def _second_pass(based):
    """A kernel for the squared distances of the rows to a centre."""

    @njit(nogil=True, fastmath=FAST, cache=True)
    def kernel(rows, base, a, m, centre, sq_distances):
        n, zero = len(rows), np.float32(0)
        origin = _at(base if based else rows[0], a, m)
        for i in range(0, n, 4):
            (p, q, r, s), new = _four(n, i)
            w, x, y, z = _at(rows[p], a, m), _at(rows[q], a, m), _at(rows[r], a, m), _at(rows[s], a, m)
            e, f, g, h = zero, zero, zero, zero
            for j in range(m):
                o, v = origin[j] if based else zero, centre[j]
                b, c, d, k = (w[j] - o) - v, (x[j] - o) - v, (y[j] - o) - v, (z[j] - o) - v
                e += b * b
                f += c * c
                g += d * d
                h += k * k
            _add(sq_distances, (p, q, r, s), new, (e, f, g, h))

    return kernel


_sums, _sums_based = _first_pass(False, False), _first_pass(True, False)
_twin_sums, _twin_sums_based = _first_pass(False, True), _first_pass(True, True)
_far, _far_based = _second_pass(False), _second_pass(True)


@njit(nogil=True, cache=True)
def _distances(rows, base, a, m, centre, sq_distances):
    if base != 0:
        _far_based(rows, base, a, m, centre, sq_distances)
    else:
        _far(rows, base, a, m, centre, sq_distances)


@njit(nogil=True, cache=True)
def survey(rows, base, start, stop, centre, shares, total, sq_norms, sq_distances):
    """Add columns [start, stop) to the sums of :meth:`Updates.survey`; ``base`` is an address or 0.

    Without ``sq_distances`` (an empty array) only sums and norms are made. A row that counts in neither sum is not
    mixed in, so that one which is not finite spoils only its own norm.
    """
    width = WIDTH if len(sq_distances) > 0 else WIDE
    mean, zero = np.zeros(width, np.float32), np.zeros(width, np.float32)
    used, rest = np.flatnonzero((centre != 0) | (shares != 0)), np.flatnonzero((centre == 0) & (shares == 0))
    mixed, others, norms = rows[used], rows[rest], np.zeros(len(used))
    c, s, norms_of_others = centre[used], shares[used], np.zeros(len(rest))
    twin = len(sq_distances) > 0 and not np.array_equal(c, s)
    for a in range(start, stop, width):
        m = min(width, stop - a)
        out = total[a - start : a - start + m]
        out[:] = 0
        mean[:] = 0
        if base != 0 and twin:
            _twin_sums_based(mixed, base, a, m, s, c, out, mean, norms)
        elif base != 0:
            _sums_based(mixed, base, a, m, s, c, out, mean, norms)
        elif twin:
            _twin_sums(mixed, base, a, m, s, c, out, mean, norms)
        else:
            _sums(mixed, base, a, m, s, c, out, mean, norms)
        if len(rest) > 0:
            _distances(others, base, a, m, zero, norms_of_others)
        if len(sq_distances) > 0:
            _distances(rows, base, a, m, mean if twin else out, sq_distances)
    sq_norms[used] += norms
    sq_norms[rest] += norms_of_others


@njit(nogil=True, cache=True)
def weighted_sum(rows, base, start, stop, weights, scale, out):
    """out = scale * out + sum_i weights[i] * (row_i - base) over columns [start, stop); scale 0 does not read out."""
    zero = np.zeros(WIDE, np.float32)
    for a in range(start, stop, WIDE):
        m = min(WIDE, stop - a)
        origin, total = _at(base, a, m) if base != 0 else zero, out[a - start : a - start + m]
        if scale == 0:
            total[:] = 0
        elif scale != 1:
            for j in range(m):
                total[j] *= scale
        _mix(rows, origin, a, m, weights, total)


@njit(nogil=True, fastmath=FAST, cache=True)
def _products(tile, i, k, m, out):
    """Add the 16 inner products of rows i to i+3 with rows k to k+3 over m columns."""
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
        out[i + x, k] += row[0]
        out[i + x, k + 1] += row[1]
        out[i + x, k + 2] += row[2]
        out[i + x, k + 3] += row[3]


@njit(nogil=True, fastmath=FAST, cache=True)
def gram(rows, base, origin, start, stop, out):
    """Add columns [start, stop) to the inner products of the rows and of the base, all about row ``origin``.

    ``out`` has a row for each client, one for the base (zero where there is none), and zeros up to a multiple of four;
    of its two equal halves only the blocks on and above the diagonal are filled.
    """
    n, size = len(rows), len(out)
    tile, zero = np.zeros((size, PRODUCT_WIDTH), np.float32), np.zeros(PRODUCT_WIDTH, np.float32)
    for a in range(start, stop, PRODUCT_WIDTH):
        m = min(PRODUCT_WIDTH, stop - a)
        centre = _at(rows[origin], a, m)
        for i in range(n + 1):
            x = _at(rows[i], a, m) if i < n else (_at(base, a, m) if base != 0 else zero)
            row = tile[i]
            for j in range(m):
                row[j] = x[j] - centre[j]
        for i in range(0, size, 4):
            for k in range(i, size, 4):
                _products(tile, i, k, m, out)


@njit(nogil=True, cache=True)
def _sort(rows, base, a, m, pairs, tile):
    """Copy m columns from a into the tile and put each in order by compare and exchange."""
    for i in range(len(rows)):
        x, row = _at(rows[i], a, m), tile[i]
        if base != 0:
            origin = _at(base, a, m)
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
def ranked_mean(rows, base, start, stop, pairs, low, high, out):
    """The mean of the values of rank low to high - 1 of each column in [start, stop)."""
    n, share = len(rows), np.float32(1 / (high - low))
    width = max(64, SORT_SIZE // n // 64 * 64)
    tile = np.empty((n, width), np.float32)
    for a in range(start, stop, width):
        m = min(width, stop - a)
        _sort(rows, base, a, m, pairs, tile)
        total = out[a - start : a - start + m]
        total[:] = 0
        for r in range(low, high):
            row = tile[r]
            for j in range(m):
                total[j] += row[j]
        for j in range(m):
            total[j] *= share


@njit(nogil=True, cache=True)
def nearest_mean(rows, base, start, stop, pairs, keep, out):
    """The mean of the ``keep`` values closest to the median of each column in [start, stop)."""
    n, share = len(rows), np.float32(1 / keep)
    width = max(64, SORT_SIZE // n // 64 * 64)
    tile = np.empty((n, width), np.float32)
    best, first = np.empty(width, np.float32), np.empty(width, np.int32)
    for a in range(start, stop, width):
        m = min(width, stop - a)
        _sort(rows, base, a, m, pairs, tile)
        lower, upper = tile[(n - 1) // 2], tile[n // 2]
        total = out[a - start : a - start + m]
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
