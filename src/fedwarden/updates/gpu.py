"""The folds of updates on a GPU by Triton kernels: one launch and at most one wait for the device each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.stats import Norms, Weights
from . import plain
from .segments import PLACES, Plan, Rows, Segment, pieces, plan
from .sketch import Hashing
from .threads import load_kernels

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64)  # in the order of the kernels' codes
GROUP = 2048  # columns whose sums a program forms in float32; sums of groups are added in float64
TILE_ROWS = 1024  # most clients of whom one tile holds all; more are left to torch
PROGRAMS = 8  # of inner products for each multiprocessor; each has float32 sums of its own, which are added in float64
SORT_THREADS = 128  # of a program that sorts
SORT_ROWS = 256  # most clients whose columns are sorted by the kernels; more are left to torch
SAMPLE_WIDTH = 256  # columns, of one client, of a program that takes a sample
COPIED_BYTES = 256 << 20  # rows that kernels cannot read where they lie are copied in blocks of this size


@cache
def kernels() -> ModuleType | None:
    """The kernels, once one of them has run; None where Triton is missing or, as without a C compiler, fails."""
    found = load_kernels("fedwarden.updates.triton_kernels", "triton")
    try:
        if found is not None:
            found.one[(1,)](torch.zeros(1, device="cuda" if torch.cuda.is_available() else "cpu"))
    except Exception as error:  # whatever a compiler, a driver or Triton itself finds wrong: no reason to end a round
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(
            f"Triton does not work here ({reason}); updates on a GPU are read by torch, more slowly", stacklevel=2
        )
        return None
    return found


class Table(NamedTuple):
    """Where the kernels find the rows, on the device."""

    rows: Tensor
    """(segments, n): the address of each client's buffer."""
    layout: tuple[tuple[int, int, bool, int], ...]
    """Of each segment the first column, the one after the last, whether it is measured, and the code of its type."""
    base: Tensor | None
    align: int
    """Bytes of which every address is a multiple, 16 at most."""
    kept: Tensor | None = None
    """What the addresses are of, where nobody else keeps it."""

    @property
    def fold(self) -> int:
        """Neighbouring entries of a row that one thread loads at once, and may add up by itself; at least 2.

        With 1 the sums of a row would need as many registers as the tile itself, which is five times slower.
        """
        return max(2, self.align // max(TYPES[code].itemsize for _, _, _, code in self.layout))

    def groups(self, width: int, measured_only: bool = False) -> Tensor:
        return groups(self.layout, width, measured_only, self.rows.device)

    @property
    def options(self) -> dict[str, Any]:
        """What kernels are compiled for."""
        types = {code for _, _, _, code in self.layout}
        one = types.pop() if len(types) == 1 else len(TYPES)
        return {"BASE": self.base is not None, "TYPE": one, "ALIGN": self.align}


def survey(updates: Rows, centre: Weights, shares: Weights, spread: bool) -> tuple[Norms, Norms, Norms, Tensor]:
    """Squared norms, lengths and distances, and the weighted sum: see ``Updates.survey``."""
    if updates.n > TILE_ROWS:
        return plain.survey(updates, centre, shares, spread)
    twin = spread and not np.array_equal(centre, shares)
    weights = uploaded(np.concatenate([shares, centre] if twin else [shares]).astype(np.float32), updates.device)
    total = torch.empty(updates.d, dtype=torch.float32, device=updates.device)
    rows, width, warps = tile(updates.n)
    sums = []
    with on(updates.device):
        for table in tables(updates):
            some = table.groups(GROUP)
            parts = torch.empty(len(some), 3, updates.n, device=updates.device)
            kernel("survey", len(some))(
                table.rows, some, total if table.base is None else table.base, weights, total, parts, updates.n,
                ROWS=rows, WIDTH=width, FOLD=table.fold, GROUP=GROUP, TWIN=twin, SPREAD=spread,
                num_warps=warps, **table.options,
            )  # fmt: skip
            sums.append(parts.sum(dim=0, dtype=torch.float64))
        fetched = begin_sum(sums)
    norms, lengths, distances = fetched()
    return norms, lengths, distances, total


def weighted_sum(rows: Rows, weights: Weights, before: Tensor | None, scale: float) -> Tensor:
    """scale * before + sum_i weights_i x_i, with weights that are not 0."""
    if rows.n > TILE_ROWS:
        return plain.weighted_sum(rows, weights, before, scale)
    out = torch.empty(rows.d, dtype=torch.float32, device=rows.device)
    w = uploaded(weights.astype(np.float32), rows.device)
    height, width, warps = tile(rows.n)
    with on(rows.device):
        for table in tables(rows):
            some = table.groups(GROUP)
            kernel("weighted_sum", len(some))(
                table.rows, some, out if table.base is None else table.base, w, out if before is None else before,
                float(scale), out, rows.n, ROWS=height, WIDTH=width, GROUP=GROUP,
                BEFORE=before is not None, num_warps=warps, **table.options,
            )  # fmt: skip
    return out


def ranked_mean(updates: Rows, low: int, high: int) -> Tensor:
    """In each column, the mean of the values of rank low to high - 1."""
    if updates.n > SORT_ROWS:
        return plain.ranked_mean(updates, low, high)
    return _sorted(updates, "ranked_mean", low, high)


def nearest_mean(updates: Rows, keep: int) -> Tensor:
    """In each column, the mean of the ``keep`` values closest to the median."""
    if updates.n > SORT_ROWS:
        return plain.nearest_mean(updates, keep)
    return _sorted(updates, "nearest_mean", keep)


def _sorted(updates: Rows, name: str, *ranks: int) -> Tensor:
    """What a kernel makes of each column in order."""
    out = torch.empty(updates.d, dtype=torch.float32, device=updates.device)
    levels, width = sort_tile(updates.n)
    with on(updates.device):
        for table in tables(updates):
            some = table.groups(width)
            kernel(name, len(some))(
                table.rows, some, out if table.base is None else table.base, out, updates.n, *ranks,
                LEVELS=levels, WIDTH=width, num_warps=SORT_THREADS // 32, BASE=table.options["BASE"],
                TYPE=table.options["TYPE"],
            )  # fmt: skip
    return out


def gram(updates: Rows, origin: int) -> NDArray[np.float64]:
    """Inner products about one of the rows, of the rows and, last, of the zero vector."""
    return begin_gram(updates, origin)()


def begin_gram(updates: Rows, origin: int) -> Callable[[], NDArray[np.float64]]:
    """The same on its way: what is returned waits for it."""
    size = updates.n + 1
    edge, width, warps = product_tile(size)
    tiles = -(-size // edge)
    sums = []
    with on(updates.device):
        for table in tables(updates):
            some = table.groups(GROUP, measured_only=True)
            if not len(some):
                continue
            programs = min(len(some), -(-PROGRAMS * multiprocessors(updates.device) * 2 // (tiles * (tiles + 1))))
            parts = torch.empty(programs, tiles, tiles, edge, edge, device=updates.device)
            kernel("gram", tiles * tiles, programs)(
                table.rows, some, parts if table.base is None else table.base, parts, updates.n, origin, 1.0, len(some),
                TILES=tiles, TILE=edge, WIDTH=width, GROUP=GROUP, num_warps=warps, num_stages=1,
                **table.options,
            )  # fmt: skip
            sums.append(parts.sum(dim=0, dtype=torch.float64))
        fetched = begin_sum(sums) if sums else None

    def wait() -> NDArray[np.float64]:
        if fetched is None:
            return np.zeros((size, size))
        half = fetched().transpose(0, 2, 1, 3).reshape(tiles * edge, tiles * edge)[:size, :size]
        return np.asarray(np.triu(half) + np.triu(half, 1).T, dtype=np.float64)

    return wait


def sample(updates: Rows, columns: NDArray[np.int64]) -> Tensor:
    """The entries of the rows in some columns: one launch, where torch needs two for every layer of every client."""
    whole = updates.plan(GROUP, TYPES)
    if whole is None or not len(columns) or len({segment.dtype for segment in updates.segments}) > 1:
        return plain.sample(updates, columns)
    found = next(tables(updates))
    segment = np.searchsorted(whole.start, columns, side="right") - 1
    places = uploaded(np.stack([segment, columns - whole.start[segment], columns]), updates.device)
    out = torch.empty(updates.n, len(columns), device=updates.device)
    with on(updates.device):
        kernel("sample", updates.n, -(-len(columns) // SAMPLE_WIDTH))(
            found.rows, places, out if found.base is None else found.base, out, updates.n, len(columns),
            WIDTH=SAMPLE_WIDTH, BASE=found.base is not None, TYPE=found.options["TYPE"],
        )  # fmt: skip
    return out


def sketch(updates: Rows, hashing: Hashing) -> Tensor:
    """The rows as sketches; those that came in pieces are joined a few at a time, which saves a launch for each."""
    if updates.plan(GROUP, TYPES) is None or all(segment.stack is not None for segment in updates.segments):
        return plain.sketch(updates, hashing)
    out = torch.zeros(updates.n, len(hashing.signs), device=updates.device)
    signs, step = torch.from_numpy(hashing.signs).to(out), max(1, COPIED_BYTES // (4 * updates.d))
    for i in range(0, updates.n, step):
        some = range(i, min(i + step, updates.n))
        joined = torch.cat([segment.rows[j] for j in some for segment in updates.segments]).to(out.dtype)
        rows = joined.view(len(some), -1)
        rows = rows if updates.base is None else rows - updates.base
        for segment in updates.segments:
            if segment.measured:
                block = rows[:, segment.start : segment.stop]
                plain.add_runs(out[some.start : some.stop], block, segment.start, hashing, signs)
    return out


def tables(updates: Rows) -> Iterator[Table]:
    """Where the rows lie; one table for each block of those that are copied first, like combinations of other rows."""
    whole = updates.plan(GROUP, TYPES)
    if whole is not None:
        yield updates.once(PLACES, lambda: table(whole, updates.segments, updates.base, updates.device))
        return
    width = max(GROUP, COPIED_BYTES // (4 * updates.n) // GROUP * GROUP)
    for segment, start, stop in pieces(updates.segments, width, updates.maps):
        block = updates.block(segment, start, stop).contiguous()
        part = (Segment(start, stop, block, segment.measured),)
        yield table(plan(part, None, GROUP), part, None, updates.device, block)


def table(
    found: Plan, segments: tuple[Segment, ...], base: Tensor | None, device: torch.device, kept: Tensor | None = None
) -> Table:
    low = int(np.bitwise_or.reduce(found.rows, axis=None)) | 16
    return Table(
        rows=uploaded(found.rows.view(np.int64), device),
        layout=tuple((s.start, s.stop, s.measured, TYPES.index(s.dtype)) for s in segments),
        base=base,
        align=low & -low,
        kept=kept,
    )


@lru_cache(maxsize=32)
def groups(
    layout: tuple[tuple[int, int, bool, int], ...], width: int, measured_only: bool, device: torch.device
) -> Tensor:
    """The columns in groups that cross no segment: see ``triton_kernels``. Rounds of one model share them.

    >>> groups(((0, 5, True, 0), (5, 7, False, 1)), 4, False, torch.device("cpu")).tolist()
    [[0, 0, 4, 0, 0, 1], [0, 4, 1, 4, 0, 1], [1, 0, 2, 5, 1, 0]]
    """
    parts = [np.zeros((0, 6), np.int64)]
    for k, (start, stop, measured, code) in enumerate(layout):
        if measured or not measured_only:
            at = np.arange(0, stop - start, width, dtype=np.int64)
            same = np.ones_like(at)
            count = np.minimum(width, stop - start - at)
            parts.append(np.stack([k * same, at, count, start + at, code * same, measured * same], axis=1))
    return torch.from_numpy(np.concatenate(parts)).to(device)  # waits: another stream may be the next to read it


def tile(n: int) -> tuple[int, int, int]:
    """Rows and columns of the tile in which all clients fit, and its number of warps: 64 numbers a thread.

    Few warps: a sum over rows crosses them through memory that they share. In reads of an H200: (64, 64, 2) 1.5 at
    n = 50 where (64, 128, 8) takes 2.7; (256, 64, 8) 1.8 at n = 200 where (256, 32, 4) takes 1.9.

    >>> tile(20), tile(50), tile(200), tile(1000)
    ((32, 64, 1), (64, 64, 2), (256, 64, 8), (1024, 32, 16))
    """
    rows = max(16, power_of_two(n))
    width = 128 if rows == 16 else 64 if rows <= 256 else 32
    return rows, width, rows * width // (64 * 32)


def product_tile(size: int) -> tuple[int, int, int]:
    """Clients of either side of a product, columns of a step, and warps: larger tiles read less often.

    In reads of an H200: (64, 64, 4) 2.2 at n = 50 where (64, 32, 4) takes 2.9; at n = 200 (128, 32, 8) 6.8 where
    (64, 64, 4) takes 7.5.

    >>> product_tile(9), product_tile(51), product_tile(101), product_tile(201)
    ((16, 64, 4), (64, 64, 4), (128, 32, 8), (128, 32, 8))
    """
    edge = min(128, max(16, power_of_two(size)))
    return (edge, 32, 8) if edge == 128 else (edge, 64, 4)


def power_of_two(n: int) -> int:
    """The smallest one that is at least n.

    >>> power_of_two(1), power_of_two(5), power_of_two(64)
    (1, 8, 64)
    """
    return 1 << max(n - 1, 0).bit_length()


def sort_tile(n: int) -> tuple[int, int]:
    """The levels of a sort, of 2 ** levels clients, and the columns that a program sorts: one a thread, or half of one.

    More than 64 clients share a column between two threads: 128 values of one thread take minutes to compile.

    >>> sort_tile(1), sort_tile(64), sort_tile(65), sort_tile(200)
    ((4, 128), (6, 128), (7, 64), (8, 64))
    """
    levels = max(4, (n - 1).bit_length())
    return levels, SORT_THREADS if levels <= 6 else SORT_THREADS // 2


def kernel(name: str, *grid: int) -> Any:
    module = load_kernels("fedwarden.updates.triton_products", "triton") if name == "gram" else kernels()
    return getattr(module, name)[grid]


def begin_sum(parts: list[Tensor]) -> Callable[[], NDArray[np.float64]]:
    """The sum of some float64 tensors on its way here: what is returned waits for it, and for nothing begun later."""
    total = parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)
    if total.device.type != "cuda":
        return total.numpy
    here = torch.empty(total.shape, dtype=total.dtype, pin_memory=True).copy_(total, non_blocking=True)
    there = torch.cuda.current_stream().record_event()

    def wait() -> NDArray[np.float64]:
        there.synchronize()
        return np.asarray(here.numpy(), dtype=np.float64)

    return wait


def uploaded(array: NDArray[Any], device: torch.device) -> Tensor:
    """A small array on the device, without waiting for it."""
    found = torch.from_numpy(np.ascontiguousarray(array))
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Kernels start on the current device: make it that of the rows."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1
