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

WIDTH = 1024  # columns at a time: the shared vectors and four rows fit the first-level cache
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


@njit(nogil=True, fastmath=FAST, cache=True)
def _mix_both(rows, origin, a, m, first, second, out, other):
    """Two weighted sums from one look at each row; rows of weight 0 in both are not read."""
    used = np.flatnonzero((first != 0) | (second != 0))
    n, i = len(used), 0
    while i < n:
        g, h = used[i], used[min(i + 1, n - 1)]
        x, y = _at(rows[g], a, m), _at(rows[h], a, m)
        p, q, s, t = first[g], first[h], second[g], second[h]
        if g == h:  # an odd last row is read with itself and counted once
            q, t = np.float32(0), np.float32(0)
        for j in range(m):
            u, v = x[j] - origin[j], y[j] - origin[j]
            out[j] += p * u + q * v
            other[j] += s * u + t * v
        i += 2


@njit(nogil=True, fastmath=FAST, cache=True)
def _spread(rows, origin, a, m, mean, sq_norms, sq_distances):
    """Add the squared norm of row_i - origin, and its squared distance to the mean, over m columns from a."""
    n, i = len(rows), 0
    while i < n:
        k = min(i + 1, n - 1)  # an odd last row is read with itself and counted once
        x, y = _at(rows[i], a, m), _at(rows[k], a, m)
        norm_x, norm_y, far_x, far_y = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for j in range(m):
            u, v, c = x[j] - origin[j], y[j] - origin[j], mean[j]
            norm_x += u * u
            norm_y += v * v
            far_x += (u - c) * (u - c)
            far_y += (v - c) * (v - c)
        sq_norms[i] += norm_x
        sq_distances[i] += far_x
        if k > i:
            sq_norms[k] += norm_y
            sq_distances[k] += far_y
        i += 2


@njit(nogil=True, cache=True)
def survey(rows, base, start, stop, centre, shares, total, sq_norms, sq_distances):
    """Add columns [start, stop) to the sums of :meth:`Updates.survey`; ``base`` is an address or 0."""
    zero, mean = np.zeros(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    mixed = False
    for i in range(len(rows)):
        mixed |= centre[i] != shares[i]
    for a in range(start, stop, WIDTH):
        m = min(WIDTH, stop - a)
        origin = _at(base, a, m) if base != 0 else zero
        out = total[a - start : a - start + m]
        out[:] = 0
        if mixed:
            mean[:] = 0
            _mix_both(rows, origin, a, m, shares, centre, out, mean)
        else:
            _mix(rows, origin, a, m, shares, out)
        _spread(rows, origin, a, m, mean if mixed else out, sq_norms, sq_distances)


@njit(nogil=True, cache=True)
def weighted_sum(rows, base, start, stop, weights, out):
    """out += sum_i weights[i] * (row_i - base) over columns [start, stop)."""
    zero = np.zeros(WIDTH, np.float32)
    for a in range(start, stop, WIDTH):
        m = min(WIDTH, stop - a)
        origin = _at(base, a, m) if base != 0 else zero
        _mix(rows, origin, a, m, weights, out[a - start : a - start + m])


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
