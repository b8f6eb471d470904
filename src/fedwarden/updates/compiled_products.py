"""Inner products of all pairs of rows on a CPU, and what a survey tells, from one read: see ``compiled`` for the rest.

Needs numba. A tile takes some columns of all rows about one of them; while these are copied into it from memory, their
weighted sum and their norms are formed, which takes no longer than the copy.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .compiled import (
    FAST,
    NONE,
    Addresses,
    Floats,
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
from .intrinsics import widest
from .segments import Plan

ROWS, WIDTH = 64, 1024  # clients and columns at a time where every row meets every other, in the second-level cache
LINE = 16  # float32 numbers of a line of the cache


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


@njit(nogil=True, inline="always")
def _fours_with_shares(shares: Sums) -> NDArray[np.bool_]:
    """For every fourth row, whether it and the three after it all have a share."""
    out = np.ones(len(shares), np.bool_)
    for i in range(len(shares)):
        out[i // 4 * 4] &= shares[i] != 0
    return out


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
    every, norms, together = np.arange(n), np.zeros(size), _fours_with_shares(shares)
    rows, weights = padded(plan.rows, every), weights_of(shares, every)
    tile, zero, unused = _tile(size), np.zeros(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    for group, segment, start, m in spans(plan, turn, WIDTH):
        base, a, measured = plan.base[segment], start - plan.start[segment], plan.measured[segment]
        less, centre = at(base, a, m) if base != 0 else zero[:m], at(rows[segment, origin], a, m)
        out = total[start : start + m] if len(total) > 0 else unused[:m]
        out[:], norms[:] = 0, 0
        for i in range(0, size, 4):
            into = out if together[i] else unused[:m]
            _four_about(rows[segment], base != 0, less, centre, i, a, m, weights, into, norms, tile)
            for k in range(i, i if together[i] else min(i + 4, n)):
                if shares[k] != 0:
                    _add(rows[segment], less, k, a, m, weights[k], out)
        for i in range(n):
            parts[group, 0, i] += norms[i]
            parts[group, 1, i] += norms[i] if measured else 0.0
        if measured:
            row = tile[origin]
            for j in range(m):
                row[j] = less[j] - centre[j]
            _pairs(tile, m, products[group])
