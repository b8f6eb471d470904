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
