"""Rows without the entries that hardly any other client moves as much."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.stats import Mask, Norms, Weights
from .mixed import Formed
from .segments import Segment
from .updates import Updates


def usual_sizes(sizes: Tensor, usual: Mask) -> Tensor:
    """In each column the size that three quarters of the usual clients do not exceed.

        m_j = the (n - floor(n/4))-th smallest of |x_ij| / ||x_i|| over the n usual clients

    >>> usual_sizes(torch.tensor([[0.1, 0.9], [0.2, 0.1], [0.3, 0.1], [0.4, 0.1]]), np.ones(4, bool)).tolist()
    [0.30000001192092896, 0.10000000149011612]
    """
    n = int(usual.sum())
    return sizes[torch.as_tensor(np.flatnonzero(usual), device=sizes.device)].kthvalue(n - n // 4, dim=0).values


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
