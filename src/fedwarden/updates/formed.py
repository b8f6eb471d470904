"""Rows that are made of other rows as they are read: combinations, steps from a vector, rows without lone entries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.stats import Mask, Norms, Weights
from .segments import Plan, Segment
from .updates import Updates


class Formed(Updates):
    """Rows that are formed from those of ``source`` as they are read, so that no kernel finds them in place."""

    source: Updates

    def sent(self, i: int) -> list[Tensor]:
        """Row i with the base put back, one piece per segment."""
        row = self._only([i])
        parts = [row.block(s, s.start, s.stop)[0] for s in row.segments]
        if self.base is None:
            return parts
        return [part + self.base[s.start : s.stop] for part, s in zip(parts, self.segments, strict=True)]

    @cached_property
    def array(self) -> Tensor | None:
        return None

    def plan(self, width: int) -> Plan | None:
        return None

    def read_into(self, segment: Segment, start: int, stop: int, out: Tensor) -> None:
        out.copy_(self.block(segment, start, stop))


class Mixed(Formed):
    """Combinations of the rows of ``source``, one per row of the matrix, formed block by block as they are read.

        y_i = sum_j matrix_ij x_j

    Their Gram matrix and weighted sums follow from those of the source, which is not read again for them.
    """

    def __init__(self, source: Updates, matrix: NDArray[np.float64]) -> None:
        if matrix.ndim != 2 or matrix.shape[1] != source.n:
            raise ValueError(f"mixing needs rows of {source.n} weights; got shape {matrix.shape}")
        super().__init__(source.segments, source.base, source.maps, source.dtype)
        self.n, self.source, self.matrix = len(matrix), source, np.asarray(matrix, np.float64)
        self._factors = torch.as_tensor(self.matrix).to(self.device, self.dtype)

    def _only(self, keep: list[int]) -> Updates:
        used = np.flatnonzero(self.matrix[keep].any(axis=0))
        if 0 < 2 * len(used) <= self.source.n:  # so that the others are not read
            return Mixed(self.source.select(used), self.matrix[keep][:, used])
        return Mixed(self.source, self.matrix[keep])

    def block(self, segment: Segment, start: int, stop: int) -> Tensor:
        return self._factors @ self.source.block(segment, start, stop)

    def sample(self, columns: NDArray[np.int64]) -> Tensor:
        return self._factors @ self.source.sample(columns)

    def _products(self) -> NDArray[np.float64]:
        full = np.eye(self.n + 1, self.source.n + 1, k=self.source.n - self.n)
        full[: self.n] = np.column_stack([self.matrix, 1 - self.matrix.sum(axis=1)])  # the rest is the zero vector
        return np.asarray(full @ self.source._products() @ full.T, dtype=np.float64)

    def weighted_sum(self, weights: Weights) -> Tensor:
        return self.source.weighted_sum(self.matrix.T @ np.asarray(weights, np.float64))


class Steps(Formed):
    """One row per row of other updates: a multiple of it and a multiple of a common vector.

        y_i = a_i c + b_i x_i  in the columns that are measured;   y_i = 0  in the others

    Nothing of size n x d is made: a row is formed when it is read.

    >>> rows = Updates.of(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> Steps(rows, torch.tensor([10.0, 20.0]), np.array([1.0, 0.0]), np.array([-1.0, 2.0])).sent(0)[0].tolist()
    [9.0, 18.0]
    """

    def __init__(self, source: Updates, common: Tensor, a: Weights, b: Weights) -> None:
        if not len(a) == len(b) == source.n or common.shape != (source.d,):
            raise ValueError(
                f"steps need two factors per row and a vector of d={source.d}; got {len(a)} and {len(b)} for "
                f"n={source.n}, and shape {tuple(common.shape)}"
            )
        super().__init__(source.segments, None, source.maps, source.dtype)
        self.source, self.common, self.a, self.b = source, common, a, b

    def _only(self, keep: list[int]) -> Updates:
        return Steps(self.source.select(keep), self.common, self.a[keep], self.b[keep])

    def block(self, segment: Segment, start: int, stop: int) -> Tensor:
        if not segment.measured:
            return torch.zeros(self.n, stop - start, dtype=self.dtype, device=self.device)
        a, b = (torch.as_tensor(f[:, None]).to(self.device, self.dtype) for f in (self.a, self.b))
        return a * self.common[start:stop].to(self.device, self.dtype) + b * self.source.block(segment, start, stop)


def usual_sizes(sizes: Tensor, usual: Mask) -> Tensor:
    """In each column the size that three quarters of the usual clients do not exceed.

        m_j = the (n - floor(n/4))-th smallest of |x_ij| / ||x_i|| over the n usual clients

    >>> usual_sizes(torch.tensor([[0.1, 0.9], [0.2, 0.1], [0.3, 0.1], [0.4, 0.1]]), np.ones(4, bool)).tolist()
    [0.30000001192092896, 0.10000000149011612]
    """
    n = int(usual.sum())
    rank = n - n // 4 - 1
    return Updates.of(sizes).select(np.flatnonzero(usual).tolist()).ranked_mean(rank, rank + 1)


class Contained(Formed):
    """The rows of ``source``; those that are ``marked`` without entries larger than is usual, as they are read.

        y_ij = 0   where |x_ij| > m_j ||x_i||,   x_ij elsewhere

    m_j is what :func:`usual_sizes` gives of the clients marked ``usual``. Columns that are not measured stay. ``whole``
    are the lengths of rows of which the source holds some columns only. To cut such entries to the usual size is not
    enough: what a few clients add in every round in the same direction is learned all the same.
    """

    def __init__(
        self,
        source: Updates,
        usual: Mask,
        marked: Mask,
        rows: Sequence[int] | None = None,
        whole: Norms | None = None,
    ) -> None:
        super().__init__(source.segments, source.base, source.maps, source.dtype)
        self.rows = list(range(source.n)) if rows is None else list(rows)
        self.n, self.source, self.usual, self.marked = len(self.rows), source, usual, marked
        self.whole = source.lengths() if whole is None else whole

    def _only(self, keep: list[int]) -> Updates:
        return Contained(self.source, self.usual, self.marked, [self.rows[i] for i in keep], self.whole)

    def weighted_sum(self, weights: Weights) -> Tensor:
        every = np.zeros(self.source.n)
        np.add.at(every, self.rows, np.asarray(weights, np.float64))
        return self.source.folded(contained_sum, every, self.usual, self.marked, self.whole)

    def block(self, segment: Segment, start: int, stop: int) -> Tensor:
        block = self.source.block(segment, start, stop)
        return (self._cut(block) if segment.measured else block)[self.rows]

    def sample(self, columns: NDArray[np.int64]) -> Tensor:
        return self._cut(self.source.sample(columns))[self.rows]

    def _cut(self, block: Tensor) -> Tensor:
        sizes = block.abs() / self._lengths
        marked = torch.from_numpy(self.marked).to(self.device)[:, None]
        return block.masked_fill(marked & (sizes > usual_sizes(sizes, self.usual)), 0.0)

    @cached_property
    def _lengths(self) -> Tensor:
        return torch.as_tensor(np.where(self.whole > 0, self.whole, 1.0)[:, None]).to(self.device, self.dtype)


def contained_sum(source: Updates, weights: Weights, usual: Mask, marked: Mask, whole: Norms) -> Tensor:
    """sum_i weights_i y_i over the rows without their lone entries, see :class:`Contained`."""
    return Contained(source, usual, marked, whole=whole)._sum(weights)
