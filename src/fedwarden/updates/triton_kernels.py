"""The folds of updates as Triton kernels: each program reads a group of columns of all clients, where they lie.

Rows are given by their addresses, a table (segments, n) of int64, so that one launch serves a stacked tensor as well as
layers anywhere in memory. A group is a row of another table: segment, first entry in it, number of columns, first
column of the result, type of the entries, and whether they are measured. No program adds to what another one writes.
"""

from __future__ import annotations

import triton
import triton.language as tl

FIELDS = tl.constexpr(6)  # of a group
STEP = tl.constexpr(16)  # groups start at multiples of so many entries of their segment
FLOAT32, FLOAT16, BFLOAT16, FLOAT64, INT64, ANY = (tl.constexpr(k) for k in range(6))  # ANY: each group says its own
NAN, LAST = tl.constexpr(0x7FC00000), tl.constexpr(0x7FFFFFFF)  # the key of NaN, and one after all others


@triton.jit
def one(out: tl.tensor) -> None:
    """Write 1: to see whether kernels can be compiled and started."""
    tl.store(out, 1.0)


@triton.jit
def _group(groups: tl.tensor, k: tl.tensor) -> tl.tensor:
    """Segment, first entry, columns, first column of the result, type, and whether measured."""
    at = groups + k * FIELDS
    offset = tl.multiple_of(tl.load(at + 1), STEP)
    return tl.load(at), offset, tl.load(at + 2), tl.load(at + 3), tl.load(at + 4), tl.load(at + 5)


@triton.jit
def _pointer(at: tl.tensor, TYPE: tl.constexpr, ALIGN: tl.constexpr) -> tl.tensor:
    """Addresses as pointers to entries of a type, all of them multiples of so many bytes.

    The hint must stand beside the conversion: given to what a function returns, it is lost when that is inlined, and
    every entry is a load of its own.
    """
    if TYPE == FLOAT32:
        first = at.to(tl.pointer_type(tl.float32))
    elif TYPE == FLOAT16:
        first = at.to(tl.pointer_type(tl.float16))
    elif TYPE == BFLOAT16:
        first = at.to(tl.pointer_type(tl.bfloat16))
    elif TYPE == FLOAT64:
        first = at.to(tl.pointer_type(tl.float64))
    else:
        first = at.to(tl.pointer_type(tl.int64))
    return tl.multiple_of(first, ALIGN)


@triton.jit
def _read(at: tl.tensor, j: tl.tensor, inside: tl.tensor, TYPE: tl.constexpr, ALIGN: tl.constexpr) -> tl.tensor:
    """Entries j of the rows at these addresses as float32; 0 where not inside."""
    first = _pointer(at, TYPE, ALIGN)
    return tl.load(first[:, None] + j[None, :], mask=inside, other=0).to(tl.float32)


@triton.jit
def _entries(
    at: tl.tensor, j: tl.tensor, inside: tl.tensor, kind: tl.tensor, TYPE: tl.constexpr, ALIGN: tl.constexpr
) -> tl.tensor:
    """The same for rows whose type is known beforehand, or is that of their group."""
    if TYPE != ANY:
        x = _read(at, j, inside, TYPE, ALIGN)
    elif kind == FLOAT32:
        x = _read(at, j, inside, FLOAT32, ALIGN)
    elif kind == FLOAT16:
        x = _read(at, j, inside, FLOAT16, ALIGN)
    elif kind == BFLOAT16:
        x = _read(at, j, inside, BFLOAT16, ALIGN)
    elif kind == FLOAT64:
        x = _read(at, j, inside, FLOAT64, ALIGN)
    else:
        x = _read(at, j, inside, INT64, ALIGN)
    return x


@triton.jit
def _tile(
    at: tl.tensor, some: tl.tensor, base: tl.tensor, offset: tl.tensor, start: tl.tensor, left: tl.tensor, kind:
    tl.tensor,
    WIDTH: tl.constexpr, EVEN: tl.constexpr, BASE: tl.constexpr, TYPE: tl.constexpr, ALIGN: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """WIDTH columns of the rows, the base taken off; with EVEN all of them exist, else ``left`` do and the rest is 0.

    A mask that only depends on the row leaves neighbouring entries to one load.
    """
    j = tl.arange(0, WIDTH)
    inside = some[:, None] if EVEN else some[:, None] & (j < left)[None, :]
    x = _entries(at, offset + j, inside, kind, TYPE, ALIGN)
    if BASE:
        x -= tl.load(base + start + j, mask=j < left, other=0.0)[None, :]
    return x


@triton.jit
def _mixed(x: tl.tensor, weights: tl.tensor) -> tl.tensor:
    """The weighted sum of the rows; one of weight 0 is left out, so that what is not finite in it spoils nothing."""
    return tl.sum(tl.where(weights[:, None] != 0, x * weights[:, None], 0.0), axis=0)


@triton.jit
def _folded(x: tl.tensor, ROWS: tl.constexpr, WIDTH: tl.constexpr, FOLD: tl.constexpr) -> tl.tensor:
    """Sums of FOLD neighbouring columns, which one thread holds: sums over a whole row would cross threads."""
    return tl.sum(tl.reshape(x, [ROWS, WIDTH // FOLD, FOLD]), axis=2)


@triton.jit
def _survey_group(
    at: tl.tensor, some: tl.tensor, shares: tl.tensor, centre: tl.tensor, base: tl.tensor, total: tl.tensor, offset:
    tl.tensor, start: tl.tensor, count: tl.tensor, kind: tl.tensor,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, FOLD: tl.constexpr, EVEN: tl.constexpr,
    BASE: tl.constexpr, TYPE: tl.constexpr, ALIGN: tl.constexpr, TWIN: tl.constexpr, SPREAD: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    j = tl.arange(0, WIDTH)
    norms = tl.zeros([ROWS, WIDTH // FOLD], tl.float32)
    distances = tl.zeros([ROWS, WIDTH // FOLD], tl.float32)
    for a in range(0, count, WIDTH):
        x = _tile(at, some, base, offset + a, start + a, count - a, kind, WIDTH, EVEN, BASE, TYPE, ALIGN)
        mixed = _mixed(x, shares)
        tl.store(total + start + a + j, mixed, mask=j < count - a)
        norms += _folded(x * x, ROWS, WIDTH, FOLD)
        if SPREAD:
            mean = _mixed(x, centre) if TWIN else mixed
            apart = x - mean[None, :]
            distances += _folded(apart * apart, ROWS, WIDTH, FOLD)
    return tl.sum(norms, axis=1), tl.sum(distances, axis=1)


@triton.jit(do_not_specialize=["n"])
def survey(
    rows: tl.tensor, groups: tl.tensor, base: tl.tensor, weights: tl.tensor, total: tl.tensor, parts: tl.tensor, n:
    tl.tensor,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, FOLD: tl.constexpr, GROUP: tl.constexpr,
    BASE: tl.constexpr, TYPE: tl.constexpr, ALIGN: tl.constexpr, TWIN: tl.constexpr, SPREAD: tl.constexpr,
) -> None:  # fmt: skip
    """The sums of ``Updates.survey`` over a group: ``total``, and in ``parts`` (groups, 3, n) the squared ones.

    ``weights`` are the shares and then, with TWIN, those of the centre.
    """
    k, i = tl.program_id(0).to(tl.int64), tl.arange(0, ROWS)
    some = i < n
    segment, offset, count, start, kind, measured = _group(groups, k)
    at = tl.load(rows + segment * n + i, mask=some, other=0)
    shares = tl.load(weights + i, mask=some, other=0.0)
    centre = tl.load(weights + n + i, mask=some, other=0.0) if TWIN else shares
    if count == GROUP:
        norms, distances = _survey_group(
            at, some, shares, centre, base, total, offset, start, count, kind,
            ROWS, WIDTH, FOLD, True, BASE, TYPE, ALIGN, TWIN, SPREAD,
        )  # fmt: skip
    else:
        norms, distances = _survey_group(
            at, some, shares, centre, base, total, offset, start, count, kind,
            ROWS, WIDTH, FOLD, False, BASE, TYPE, ALIGN, TWIN, SPREAD,
        )  # fmt: skip
    out = parts + k * 3 * n + i
    tl.store(out, norms, mask=some)
    tl.store(out + n, tl.where(measured != 0, norms, 0.0), mask=some)
    tl.store(out + 2 * n, tl.where(measured != 0, distances, 0.0), mask=some)


@triton.jit
def _sum_group(
    at: tl.tensor, some: tl.tensor, weights: tl.tensor, base: tl.tensor, before: tl.tensor, scale: tl.tensor, out:
    tl.tensor, offset: tl.tensor, start: tl.tensor, count: tl.tensor,
    kind: tl.tensor, WIDTH: tl.constexpr, EVEN: tl.constexpr, BASE: tl.constexpr,
    TYPE: tl.constexpr, ALIGN: tl.constexpr, BEFORE: tl.constexpr,
) -> None:  # fmt: skip
    j = tl.arange(0, WIDTH)
    for a in range(0, count, WIDTH):
        x = _tile(at, some, base, offset + a, start + a, count - a, kind, WIDTH, EVEN, BASE, TYPE, ALIGN)
        mixed = _mixed(x, weights)
        if BEFORE:
            mixed += scale * tl.load(before + start + a + j, mask=j < count - a, other=0.0)
        tl.store(out + start + a + j, mixed, mask=j < count - a)


@triton.jit(do_not_specialize=["n"])
def weighted_sum(
    rows: tl.tensor, groups: tl.tensor, base: tl.tensor, weights: tl.tensor, before: tl.tensor, scale: tl.tensor,
    out: tl.tensor, n: tl.tensor,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, BASE: tl.constexpr,
    TYPE: tl.constexpr, ALIGN: tl.constexpr, BEFORE: tl.constexpr,
) -> None:  # fmt: skip
    """out = scale * before + sum_i weights_i row_i over one group; without BEFORE the sum alone."""
    k, i = tl.program_id(0).to(tl.int64), tl.arange(0, ROWS)
    some = i < n
    segment, offset, count, start, kind, _ = _group(groups, k)
    at = tl.load(rows + segment * n + i, mask=some, other=0)
    w = tl.load(weights + i, mask=some, other=0.0)
    if count == GROUP:
        _sum_group(
            at, some, w, base, before, scale, out, offset, start, count, kind,
            WIDTH, True, BASE, TYPE, ALIGN, BEFORE,
        )  # fmt: skip
    else:
        _sum_group(
            at, some, w, base, before, scale, out, offset, start, count, kind,
            WIDTH, False, BASE, TYPE, ALIGN, BEFORE,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n", "count"])
def sample(
    rows: tl.tensor, places: tl.tensor, base: tl.tensor, out: tl.tensor, n: tl.tensor, count: tl.tensor,
    WIDTH: tl.constexpr, BASE: tl.constexpr, TYPE: tl.constexpr,
) -> None:  # fmt: skip
    """Some columns of one row; ``places`` (3, count) are the segment, the entry in it and the column of each."""
    i, j = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = j < count
    segment, entry = tl.load(places + j, mask=inside, other=0), tl.load(places + count + j, mask=inside, other=0)
    at = tl.load(rows + segment * n + i, mask=inside, other=0)
    x = tl.load(_pointer(at, TYPE, 1) + entry, mask=inside, other=0).to(tl.float32)
    if BASE:
        x -= tl.load(base + tl.load(places + 2 * count + j, mask=inside, other=0), mask=inside, other=0.0)
    tl.store(out + i * count + j, x, mask=inside)


@triton.jit
def _key(x: tl.tensor) -> tl.tensor:
    """Integers in the order of the numbers, NaN after infinity: the bits of a negative number count downwards."""
    bits = tl.where(x == x, x.to(tl.int32, bitcast=True), NAN)
    return bits ^ ((bits >> 31) & LAST)


@triton.jit
def _number(key: tl.tensor) -> tl.tensor:
    return (key ^ ((key >> 31) & LAST)).to(tl.float32, bitcast=True)


@triton.jit
def _exchange(
    keys: tl.tensor, ROWS: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, APART: tl.constexpr
) -> tl.tensor:
    """Compare and exchange keys APART rows from each other; runs of RUN rows rise and fall in turn."""
    PAIRS: tl.constexpr = ROWS // (2 * APART)
    pairs = tl.permute(tl.reshape(keys, [PAIRS, 2, APART * WIDTH]), (0, 2, 1))
    x, y = tl.split(pairs)
    falling = ((tl.arange(0, PAIRS) * 2 * APART // RUN) % 2 == 1)[:, None]
    low, high = tl.minimum(x, y), tl.maximum(x, y)
    pairs = tl.join(tl.where(falling, high, low), tl.where(falling, low, high))
    return tl.reshape(tl.permute(pairs, (0, 2, 1)), [ROWS, WIDTH])


@triton.jit
def _ordered(
    rows: tl.tensor, n: tl.tensor, base: tl.tensor, offset: tl.tensor, start: tl.tensor, left: tl.tensor, kind:
    tl.tensor,
    LEVELS: tl.constexpr, WIDTH: tl.constexpr, BASE: tl.constexpr, TYPE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """WIDTH columns in order; missing rows come last. Batcher's bitonic sort of 2 ** LEVELS rows.

    Nothing is said of the alignment of rows, so that a thread holds all values of one column and exchanges registers.
    """
    ROWS: tl.constexpr = 1 << LEVELS
    i = tl.arange(0, ROWS)
    some = i < n
    at = tl.load(rows + i, mask=some, other=0)
    x = _tile(at, some, base, offset, start, left, kind, WIDTH, False, BASE, TYPE, 1)
    keys = tl.where(some[:, None], _key(x), LAST)
    for level in tl.static_range(1, LEVELS + 1):
        for step in tl.static_range(level):
            keys = _exchange(keys, ROWS, WIDTH, 1 << level, 1 << (level - 1 - step))
    return _number(keys)


@triton.jit(do_not_specialize=["n", "low", "high"])
def ranked_mean(
    rows: tl.tensor, groups: tl.tensor, base: tl.tensor, out: tl.tensor, n: tl.tensor, low: tl.tensor, high: tl.tensor,
    LEVELS: tl.constexpr, WIDTH: tl.constexpr, BASE: tl.constexpr, TYPE: tl.constexpr,
) -> None:  # fmt: skip
    """The mean of the values of rank low to high - 1 of each column of a group of at most WIDTH."""
    segment, offset, count, start, kind, _ = _group(groups, tl.program_id(0).to(tl.int64))
    x = _ordered(rows + segment * n, n, base, offset, start, count, kind, LEVELS, WIDTH, BASE, TYPE)
    i, j = tl.arange(0, 1 << LEVELS)[:, None], tl.arange(0, WIDTH)
    total = tl.sum(tl.where((low <= i) & (i < high), x, 0.0), axis=0)
    tl.store(out + start + j, total / (high - low).to(tl.float32), mask=j < count)


@triton.jit(do_not_specialize=["n", "keep"])
def nearest_mean(
    rows: tl.tensor, groups: tl.tensor, base: tl.tensor, out: tl.tensor, n: tl.tensor, keep: tl.tensor,
    LEVELS: tl.constexpr, WIDTH: tl.constexpr, BASE: tl.constexpr, TYPE: tl.constexpr,
) -> None:  # fmt: skip
    """The mean of the ``keep`` values closest to the median of each column; they lie side by side in order.

    As in ``ranks.nearest_mean`` the first of equally near windows counts, and one with NaN before all others.
    """
    segment, offset, count, start, kind, _ = _group(groups, tl.program_id(0).to(tl.int64))
    x = _ordered(rows + segment * n, n, base, offset, start, count, kind, LEVELS, WIDTH, BASE, TYPE)
    i, j = tl.arange(0, 1 << LEVELS)[:, None], tl.arange(0, WIDTH)
    below, above = tl.sum(tl.where(i == (n - 1) // 2, x, 0.0), axis=0), tl.sum(tl.where(i == n // 2, x, 0.0), axis=0)
    middle = ((below + above) / 2)[None, :]
    last = tl.minimum(i + keep - 1, n - 1) + tl.zeros([1 << LEVELS, WIDTH], tl.int32)
    left, right = middle - x, tl.gather(x, last, axis=0) - middle
    far = tl.where((left > right) | (left != left), left, right)
    far = tl.where(far == far, far, -1.0)
    first = tl.argmin(tl.where(i + keep <= n, far, float("inf")), axis=0)[None, :]
    total = tl.sum(tl.where((first <= i) & (i < first + keep), x, 0.0), axis=0)
    tl.store(out + start + j, total / keep.to(tl.float32), mask=j < count)
