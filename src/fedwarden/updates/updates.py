"""The updates of one round as a fold over column blocks: n clients, d parameters, never an n x d copy.

Rows stay in the buffers they arrived in: one stacked tensor, a list of layers per client, or memory-mapped files.
Every statistic reads them once, block by block. What several stages of a round need (norms, distances to the mean, the
weighted sum) is one :class:`Survey`, which the rows carry along; the Gram matrix is kept.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.seeds import numpy_rng
from ..core.stats import Mask, Norms, Scores, Weights
from . import cpu, plain
from .gram import central, cosines, sharp
from .ranks import closer_half, far_off, median
from .segments import ARRAYS, BackEnd, Plan, Scaled, Segment, pieces, plan, read_segments
from .sketch import ALL_PAIRS, SIZE, Hashing, coarse_lengths, hashing, nearest_to_median, spread_columns
from .survey import Sum, Survey, correction, counted, mean_of

BLOCK_BYTES = 4 << 20  # one block of all clients; near the size of a second-level cache
DEVICE_BYTES = 256 << 20  # the same on a GPU, where a block costs some launches; at most a part of all, for memory
DEVICE_PART = 8
KERNEL_SIZE = 1 << 17  # entries from which a compiled kernel pays for its start
ONE_THREAD = 1 << 15  # entries that torch copies in one thread; more threads wait for each other on busy cores
T = TypeVar("T")
PEEK = 256  # columns by which a row is likely to lie close to the others
FAR_OFF = 6.0  # median absolute deviations beyond which a value of a buffer lies far off
FAR = 0.1  # of a client's buffers that may lie far off: a few far values are nobody's fault


class Updates:
    """The rows of n clients, read as blocks (n, b) of one floating type.

    It is that of ``base``, the global model; without one, float64 where every client sent float64, else float32. No
    single client decides it. ``known`` is what has been read of the rows, if anything: see :meth:`knowing`.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        base: Tensor | None = None,
        maps: Sequence[mmap.mmap] = (),
        dtype: torch.dtype | None = None,
    ) -> None:
        if isinstance(segments, ARRAYS) or not segments:
            raise ValueError("updates are made by Updates.of(rows), of at least one layer")
        self.segments = tuple(segments)
        self.n = len(segments[0])
        self.d = segments[-1].stop
        first = segments[0].given
        self.device = first.device if isinstance(first, Tensor) else first[0].device
        sent = frozenset[torch.dtype]().union(*(s.types for s in segments))
        types = {kind for kind in sent if kind.is_floating_point} if base is None else {base.dtype}
        self.dtype = dtype or (torch.float64 if types == {torch.float64} else torch.float32)
        if base is not None and base.numel() != self.d:
            raise ValueError(f"base needs as many entries as a row; got {base.numel()}, rows have d={self.d}")
        self.base = None if base is None else base.detach().reshape(-1).to(self.device, self.dtype).contiguous()
        self.maps = tuple(maps)
        self.known: Survey | None = None
        self._sq_lengths: Scores | None = None
        self._gram: NDArray[np.float64] | None = None
        self._made: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, rows: Any, base: Tensor | None = None, measured: Sequence[tuple[int, int]] | None = None) -> Updates:
        """Wrap an (n, d) tensor or array, a list of clients (each a flat array or a list of layer arrays), or Updates.

        ``base`` is subtracted from every row as it is read: give the round's global parameters when the rows are
        whole models. ``measured`` lists the column ranges that enter distances; by default all but integer layers.
        """
        if isinstance(rows, Updates):
            return rows
        if isinstance(rows, ARRAYS) and rows.ndim == 2 and not len(rows):
            return cls.empty(rows.shape[1])
        segments, maps = read_segments(rows, measured)
        return cls(segments, base, maps)

    @classmethod
    def open(cls, paths: Sequence[str | os.PathLike[str]], base: Tensor | None = None) -> Updates:
        """Wrap one .npy file per client, read through memory maps and never held in memory as a whole."""
        rows = []
        for path in paths:
            if not Path(path).is_file():
                raise FileNotFoundError(f"no update file at {path}; expected one .npy file per client")
            rows.append(np.load(path, mmap_mode="r", allow_pickle=False))
        return cls.of(rows, base)

    @classmethod
    def empty(cls, d: int) -> Updates:
        """No clients of d parameters each: a round in which nobody answered."""
        return cls([Segment(0, d, torch.empty(0, d), True)])

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"Updates(n={self.n}, d={self.d}, dtype={self.dtype}, device={self.device})"

    def select(self, index: Sequence[int] | NDArray[np.int_]) -> Updates:
        """The same columns of fewer clients; shares the buffers."""
        keep = [int(i) for i in index]
        if keep == list(range(self.n)):
            return self
        if not keep:
            return Updates.empty(self.d)
        fewer = self._only(keep)
        fewer._sq_lengths = None if self._sq_lengths is None else self._sq_lengths[keep]
        if self._gram is not None:
            part = self._gram[np.ix_([*keep, self.n], [*keep, self.n])]
            fewer._gram = part if sharp(part, np.arange(len(keep))) else None  # they may lie far from the origin
        return fewer

    def agreed(self, reference: Mask) -> tuple[Tensor, Scores]:
        """The median of the reference rows in the columns that are not measured, and each row's share far off from it.

        Nothing else looks at those columns, and a client could send any variance in them. The rows of which much is far
        off from what the closer half of the reference rows agree on do not count: a minority that lies on one side of
        the others would move the median of all.
        """
        loose = [self.block(s, s.start, s.stop) for s in self.segments if not s.measured]
        if not loose or not reference.any():
            return torch.empty(0, dtype=self.dtype, device=self.device), np.zeros(self.n)
        block = torch.cat(loose, dim=1)
        usual = torch.from_numpy(reference).to(self.device)
        core = block[usual][closer_half(block[usual])]
        far = far_off(block, core, FAR_OFF).double().mean(dim=1)
        near = usual & (far <= FAR)
        near = near if 2 * int(near.sum()) > int(usual.sum()) else usual
        return median(block[near]), np.asarray(far.cpu().numpy(), dtype=np.float64)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is costly to make of these rows: made when it is first asked for, and kept with them."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    def blocks(self, measured_only: bool = False) -> Iterator[tuple[int, int, Tensor]]:
        """Yield (start, stop, block) with block (n, stop - start); a block is only valid until the next one."""
        for segment, start, stop in self.pieces():
            if segment.measured or not measured_only:
                yield start, stop, self.block(segment, start, stop)

    def pieces(self) -> Iterator[tuple[Segment, int, int]]:
        """The columns in pieces that fit the cache, or fill a GPU."""
        size = BLOCK_BYTES
        if self.device.type == "cuda":
            size = max(16 * size, min(DEVICE_BYTES, 4 * self.n * self.d // DEVICE_PART))
        return pieces(self.segments, max(1024, size // (4 * max(self.n, 1)) // 1024 * 1024), self.maps)

    def types(self) -> list[set[torch.dtype]]:
        """The floating types in which each row arrived."""
        shared = set[torch.dtype]().union(*(s.types for s in self.segments if len(s.types) == 1))
        apart = [s.given for s in self.segments if len(s.types) > 1]
        rows = [shared.union(given[i].dtype for given in apart) for i in range(self.n)] if apart else [shared] * self.n
        return [{dtype for dtype in row if dtype.is_floating_point} for row in rows]

    def sent(self, i: int) -> list[Tensor]:
        """Row i as it arrived, the base not taken off: in one piece where the rows are one array, else by segment."""
        if self.array is not None:
            return [self.array[i]]
        rows = [segment.rows[i] for segment in self.segments]
        return [row.to(self.dtype) if isinstance(row, Scaled) else row for row in rows]

    @cached_property
    def array(self) -> Tensor | None:
        """The (n, d) array as it arrived, the base not taken off, where the rows came as one."""
        first = self.segments[0].stack
        if first is None:
            return None
        step = first.stride(1) * first.element_size()
        places = [None if s.stack is None else s.stack.data_ptr() - s.start * step for s in self.segments]
        whole = set(places) == {first.data_ptr() - self.segments[0].start * step}  # rather than replaced in part
        return first.as_strided((self.n, self.d), first.stride()) if whole else None

    def survey(
        self, trusted: Mask | None = None, shares: Weights | None = None, spread: bool = True, products: bool = False
    ) -> Survey:
        """Norms, distances to the mean of the trusted rows, and the sum weighted by ``shares``, in one read.

            mu = mean over trusted i of x_i;   sq_distances_i = ||x_i - mu||^2;   total = sum_i shares_i x_i

        By default all rows are trusted and shares are those of the mean. Without ``spread`` there are no distances,
        which saves a second look at each block, and ``products`` of all pairs come along where that costs no other
        read. Nothing is read where the survey that the rows carry says it all.
        """
        centre = mean_of(np.ones(self.n, bool) if trusted is None else np.asarray(trusted, bool))
        share = centre if shares is None else np.asarray(shares, np.float64)
        if self.known is not None and self.known.answers(centre, share, spread):
            return self.known
        if products and not spread and self._back_end() is cpu and self._sharp(centre) is None and len(self):
            some = counted(centre)
            origin = nearest_to_median(self.sample(spread_columns(self.measured, PEEK)).numpy(), some)
            norms, lengths, total, found = cpu.survey_and_gram(self, share, origin)
            pairs = found if sharp(found, some) else None
            return Survey(norms, lengths, np.zeros(self.n), Sum(total), centre, share, spread, pairs)
        norms, lengths, distances, total = self._back_end().survey(self, centre, share, spread)
        return Survey(norms, lengths, distances, Sum(total), centre, share, spread)

    def knowing(self, survey: Survey) -> Updates:
        """The same rows, carrying a survey of them, so that no later step reads again what it tells.

        >>> rows = Updates.of(np.array([[1.0], [2.0], [6.0]]))
        >>> survey = rows.survey()
        >>> rows.knowing(survey).weighted_sum(survey.shares) is survey.total
        True
        """
        rows = copy(self)
        rows.known, rows._sq_lengths = survey, survey.sq_lengths
        rows._gram = self._sharp(survey.centre) if survey.products is None else survey.products
        rows._made = {}  # a buffer that is used again is read anew
        return rows

    def _sharp(self, centre: Weights) -> NDArray[np.float64] | None:
        """The products that there are, if they tell the rows in good standing apart."""
        return None if self._gram is None or not sharp(self._gram, counted(centre)) else self._gram

    def distances(self, centre: Callable[[Tensor], Tensor]) -> Norms:
        """Euclidean distance of every row to a centre that is computed block by block: (n, b) -> (b,)."""
        squares = torch.zeros(self.n, dtype=torch.float64, device=self.device)
        for _, _, block in self.blocks(measured_only=True):
            squares += plain.squares(block - centre(block))
        return np.asarray(squares.sqrt().cpu().numpy(), dtype=np.float64)

    @property
    def measured(self) -> list[tuple[int, int]]:
        """The column ranges that enter distances."""
        return [(s.start, s.stop) for s in self.segments if s.measured]

    @property
    def buffers(self) -> list[tuple[int, int]]:
        """The column ranges that do not."""
        return [(s.start, s.stop) for s in self.segments if not s.measured]

    def lengths(self) -> Norms:
        """The norm of every row over the measured columns; kept."""
        if self._sq_lengths is None:
            self._sq_lengths = self.survey(spread=False).sq_lengths
        return np.asarray(np.sqrt(self._sq_lengths), dtype=np.float64)

    def columns(
        self, reduce: Callable[[Tensor], Tensor], unmeasured: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """What a function (n, b) -> (b,) makes of each block of columns, as one (d,) tensor.

        Columns that are not measured (counters and running statistics) get a function of their own where one is given.
        """
        out = torch.empty(self.d, dtype=self.dtype, device=self.device)
        for segment, start, stop in self.pieces():
            function = reduce if segment.measured or unmeasured is None else unmeasured
            out[start:stop] = function(self.block(segment, start, stop))
        return out

    def sample(self, columns: NDArray[np.int64]) -> Tensor:
        """The (n, k) entries of the rows in k columns, which are given in ascending order."""
        return self._back_end().sample(self, columns)

    def compared(self) -> Updates:
        """The rows by which all pairs are compared: these, or of more than 256 clients sketches of them; kept.

        The sketch is drawn by the lengths of all rows, so that no client knows it before all have sent theirs. Rows of
        no more entries than a sketch are compared as they are.
        """
        return self if self.n <= ALL_PAIRS or self.d <= SIZE else self.once("sketches", self._sketches)

    def _sketches(self) -> Updates:
        drawn = hashing(self.d, numpy_rng(0, "sketch", client=coarse_lengths(self.lengths())))
        return Updates.of(self.sketch(drawn))

    def sketch(self, hashing: Hashing) -> Tensor:
        """The (n, k) sketches of the rows, over the measured columns."""
        return self._back_end().sketch(self, hashing)

    def folded(self, fold: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """What a function of these rows and some numbers makes of each column: one (d,) tensor."""
        return fold(self, *arguments)

    def ranked_mean(self, low: int, high: int) -> Tensor:
        """In each column, the mean of the values of rank low to high - 1, counted from 0."""
        return self._back_end().ranked_mean(self, low, high)

    def nearest_mean(self, keep: int) -> Tensor:
        """In each column, the mean of the ``keep`` values closest to the median."""
        return self._back_end().nearest_mean(self, keep)

    def dots(self, vector: Tensor) -> Norms:
        """The inner product of every row with a (d,) vector over the measured columns."""
        v = vector.detach().reshape(-1).to(self.device, self.dtype)
        total = torch.zeros(self.n, dtype=torch.float64, device=self.device)
        for start, stop, block in self.blocks(measured_only=True):
            total += (block @ v[start:stop]).double()
        return np.asarray(total.cpu().numpy(), dtype=np.float64)

    def gram(self) -> NDArray[np.float64]:
        """The (n, n) inner products of the rows about one of them, accumulated in float64; kept.

        About a row close to most, the differences of clients that nearly agree stay exact, and a huge row spoils no
        product but its own: squared distances are G_ii + G_jj - 2 G_ij.
        """
        return self._products()[: self.n, : self.n]

    def inner_products(self) -> NDArray[np.float64]:
        """The (n, n) inner products x_i . x_j, from the same read as :meth:`gram`; kept."""
        g, n = self._products(), self.n
        return self.once("inner products", lambda: shared(g[:n, :n] - g[:n, n:] - g[n:, :n] + g[n, n]))

    def cosines(self) -> NDArray[np.float64]:
        """The (n, n) cosines of the angles between the rows; kept."""
        return self.once("cosines", lambda: shared(cosines(self.inner_products())))

    def products_about(self, origin: int) -> NDArray[np.float64]:
        """The (n + 1, n + 1) inner products about row ``origin``, of the rows and, last, of the zero vector."""
        return self._back_end().gram(self, origin)

    def weighted_sum(self, weights: Weights) -> Tensor:
        """sum_i weights_i x_i over the rows whose weight is not zero, as a (d,) tensor.

        Where the rows carry a survey of this very sum, that is the result, and nobody may write to it. Where it is the
        same but for a few rows, only those are read again, unless they are so large that taking them out would cost
        the digits of the rest; the sum of the survey becomes the result, in the same memory, if nobody has seen it.
        """
        w = np.asarray(weights, np.float64)
        if w.shape != (self.n,):
            raise ValueError(f"one weight per client; got {w.shape} for n={self.n}")
        known = self.known
        if known is not None and not known.sum.gone and known.all_finite and np.array_equal(w, known.shares):
            return known.total
        if known is not None and (change := correction(w, known)) is not None:
            scale, delta = change
            return self._sum(delta, known.sum.take(), scale)
        return self._sum(w)

    def block(self, segment: Segment, start: int, stop: int) -> Tensor:
        """Columns [start, stop) of one segment, the base taken off."""
        a, b = start - segment.start, stop - segment.start
        if segment.stack is not None:
            block = segment.stack[:, a:b].to(self.dtype)
        else:
            block = torch.stack([row[a:b].to(self.dtype) for row in segment.rows])
        return block if self.base is None else block - self.base[start:stop]

    def read_into(self, segment: Segment, start: int, stop: int, out: Tensor) -> None:
        """The same in memory that is there already, row by row in runs that torch copies in one thread."""
        for row, place in zip(segment.rows, out, strict=True):
            for a in range(start, stop, ONE_THREAD):
                b = min(a + ONE_THREAD, stop)
                sent = row[a - segment.start : b - segment.start]
                part = place[a - start : b - start].copy_(sent.to(self.dtype) if isinstance(sent, Scaled) else sent)
                if self.base is not None:
                    part -= self.base[a:b]

    def _only(self, keep: list[int]) -> Updates:
        return Updates([segment.only(keep) for segment in self.segments], self.base, self.maps, self.dtype)

    def _products(self) -> NDArray[np.float64]:
        """Inner products about a row close to most, of the rows and, last, of the zero vector."""
        if self._gram is None:
            found, usual = self.products_about(self._origin()), self._usual()
            self._gram = found if sharp(found, usual) else self.products_about(central(found, usual))
        return self._gram

    def _usual(self) -> NDArray[np.int_]:
        """The rows in good standing, as far as is known."""
        return np.arange(self.n) if self.known is None else counted(self.known.centre)

    def _origin(self) -> int:
        """One of them of median norm; those that are no numbers come last."""
        usual = self._usual()
        return int(usual[np.argsort(self.lengths()[usual], kind="stable")[(len(usual) - 1) // 2]])

    def _back_end(self) -> BackEnd:
        return cpu if self._compiled() else plain

    def _compiled(self) -> bool:
        """Whether compiled kernels pay: for float32, and enough of it."""
        suited = self.dtype == torch.float32 and self.device.type == "cpu" and self.n * self.d >= KERNEL_SIZE
        return suited and cpu.kernels() is not None

    @cached_property
    def _places(self) -> Plan | None:
        return plan(self.segments, self.base, 1) if all(segment.in_place for segment in self.segments) else None

    def plan(self, width: int) -> Plan | None:
        """Where kernels find the rows, in groups of columns; None where they cannot read them as they lie."""
        return self._places and self._places.grouped(width)

    def _sum(self, weights: Weights, before: Tensor | None = None, scale: float = 1.0) -> Tensor:
        """scale * before + sum_i weights_i x_i, written to ``before``; rows of weight 0 are never read."""
        keep = np.flatnonzero(weights)
        if len(keep):
            return self._back_end().weighted_sum(self.select(keep), weights[keep], before, scale)
        return torch.zeros(self.d, dtype=self.dtype, device=self.device) if before is None else before.mul_(scale)


def shared(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """An array that several ask for, so nobody may write to it."""
    array.flags.writeable = False
    return array
