"""Inner products of all pairs of rows as a Triton kernel, by tensor cores: see ``triton_kernels`` for the tables.

Tensor cores read eleven bits of each number, so a row is taken as a rounded part and the rest of it, and three products
stand for one: what is left out, the rest times the rest, is below a rounding of float32. For a tile of rows with itself
two products do, since the third is the second one turned over.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_kernels import _group, _tile

BITS = tl.constexpr("tf32")  # what tensor cores read of a float32 number
HALF, UPPER = tl.constexpr(1 << 12), tl.constexpr(-(1 << 13))  # half of its last bit, and all but what is below it


@triton.jit
def _columns(
    at: tl.tensor, some: tl.tensor, zero: tl.tensor, base: tl.tensor, offset: tl.tensor, start: tl.tensor, left:
    tl.tensor, kind: tl.tensor,
    WIDTH: tl.constexpr, EVEN: tl.constexpr, BASE: tl.constexpr, TYPE: tl.constexpr, ALIGN: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """WIDTH columns of some rows, 0 beyond the last; a row of zeros is the base where one is given.

    The base falls out of all other differences, which are rounded once.
    """
    x = _tile(at, some & (left > 0), base, offset, start, left, kind, WIDTH, EVEN, False, TYPE, ALIGN)
    if BASE:
        j = tl.arange(0, WIDTH)
        x = tl.where(zero[:, None], tl.load(base + start + j, mask=j < left, other=0.0)[None, :], x)
    return x


@triton.jit
def _halves(x: tl.tensor, some: tl.tensor) -> tl.tensor:
    """Rows as two parts of eleven bits, as many as tensor cores read; 0 where there is no row."""
    x = tl.where(some[:, None], x, 0.0)
    high = ((x.to(tl.int32, bitcast=True) + HALF) & UPPER).to(tl.float32, bitcast=True)
    return high, x - high


@triton.jit
def _products_group(
    rows: tl.tensor, i: tl.tensor, k: tl.tensor, n: tl.tensor, origin: tl.tensor, one: tl.tensor, base: tl.tensor,
    offset: tl.tensor, start: tl.tensor, count: tl.tensor, kind: tl.tensor, total: tl.tensor, small: tl.tensor,
    WIDTH: tl.constexpr, EVEN: tl.constexpr, BASE: tl.constexpr, TYPE: tl.constexpr, ALIGN: tl.constexpr,
    SINGLE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add the products of rows i and k over a group; of rows with themselves half of the mixed ones to ``small``.

    While tensor cores multiply, the next columns are on their way. What these add up is cut off, not rounded, so it is
    kept short: times ``one``, which the compiler does not know, the sum goes through a rounded addition.
    """
    first = tl.arange(0, 1) + origin
    at, sides = tl.load(rows + i, mask=i < n, other=0), tl.load(rows + k, mask=k < n, other=0)
    centre = tl.load(rows + first)
    x = _columns(at, i < n, i == n, base, offset, start, count, kind, WIDTH, EVEN, BASE, TYPE, ALIGN)
    y = x
    if not SINGLE:
        y = _columns(sides, k < n, k == n, base, offset, start, count, kind, WIDTH, EVEN, BASE, TYPE, ALIGN)
    o = _columns(centre, first >= 0, first < 0, base, offset, start, count, kind, WIDTH, EVEN, False, TYPE, ALIGN)
    for a in range(WIDTH, count + WIDTH, WIDTH):
        high, low = _halves(x - o, i <= n)
        if SINGLE:
            sums = tl.dot(high, tl.trans(high), input_precision=BITS)
            small = tl.dot(high, tl.trans(low), small, input_precision=BITS)
        else:
            other, rest = _halves(y - o, k <= n)
            sums = tl.dot(low, tl.trans(other), input_precision=BITS)
            sums = tl.dot(high, tl.trans(rest), sums, input_precision=BITS)
            sums = tl.dot(high, tl.trans(other), sums, input_precision=BITS)
        total += one * sums
        to, left = offset + a, count - a
        x = _columns(at, i < n, i == n, base, to, start + a, left, kind, WIDTH, EVEN, BASE, TYPE, ALIGN)
        y = x
        if not SINGLE:
            y = _columns(sides, k < n, k == n, base, to, start + a, left, kind, WIDTH, EVEN, BASE, TYPE, ALIGN)
        o = _columns(centre, first >= 0, first < 0, base, to, start + a, left, kind, WIDTH, EVEN, False, TYPE, ALIGN)
    return total, small


@triton.jit
def _products(
    rows: tl.tensor, groups: tl.tensor, base: tl.tensor, upper: tl.tensor, lower: tl.tensor, n: tl.tensor, origin:
    tl.tensor, one: tl.tensor, count_groups: tl.tensor,
    TILE: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, BASE: tl.constexpr, TYPE: tl.constexpr,
    ALIGN: tl.constexpr, SINGLE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Inner products of TILE by TILE rows over the groups of one program."""
    i, j = upper * TILE + tl.arange(0, TILE), lower * TILE + tl.arange(0, TILE)
    total, small = tl.zeros([TILE, TILE], tl.float32), tl.zeros([TILE, TILE], tl.float32)
    for k in range(tl.program_id(1), count_groups, tl.num_programs(1)):
        segment, offset, count, start, kind, _ = _group(groups, k)
        at = rows + segment * n
        if count == GROUP:
            total, small = _products_group(
                at, i, j, n, origin, one, base, offset, start, GROUP, kind, total, small,
                WIDTH, True, BASE, TYPE, ALIGN, SINGLE,
            )  # fmt: skip
        else:
            total, small = _products_group(
                at, i, j, n, origin, one, base, offset, start, count, kind, total, small,
                WIDTH, False, BASE, TYPE, ALIGN, SINGLE,
            )  # fmt: skip
    return total + small + tl.trans(small) if SINGLE else total


@triton.jit(do_not_specialize=["n", "origin", "count_groups", "one"])
def gram(
    rows: tl.tensor, groups: tl.tensor, base: tl.tensor, parts: tl.tensor, n: tl.tensor, origin: tl.tensor,
    one: tl.tensor, count_groups: tl.tensor,
    TILES: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, BASE: tl.constexpr,
    TYPE: tl.constexpr, ALIGN: tl.constexpr,
) -> None:  # fmt: skip
    """Inner products of TILE by TILE rows about row ``origin``, over every so many-th group.

    ``parts`` is (programs, TILES, TILES, TILE, TILE), filled on and above the diagonal of tiles. Programs that take
    the same groups are neighbours, and find them in the cache.
    """
    pair, i = tl.program_id(0), tl.arange(0, TILE)
    upper, lower = pair // TILES, pair % TILES
    out = parts + (tl.program_id(1).to(tl.int64) * TILES * TILES + pair) * TILE * TILE
    out += i[:, None] * TILE + i[None, :]
    if upper == lower:
        found = _products(
            rows, groups, base, upper, lower, n, origin, one, count_groups,
            TILE, WIDTH, GROUP, BASE, TYPE, ALIGN, True,
        )  # fmt: skip
        tl.store(out, found)
    elif upper < lower:
        found = _products(
            rows, groups, base, upper, lower, n, origin, one, count_groups,
            TILE, WIDTH, GROUP, BASE, TYPE, ALIGN, False,
        )  # fmt: skip
        tl.store(out, found)
