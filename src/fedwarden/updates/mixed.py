"""Rows that are combinations of other rows, formed as they are read."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.stats import Weights
from .segments import FLOAT32, Plan, Segment
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

    def plan(self, width: int, types: tuple[torch.dtype, ...] = FLOAT32) -> Plan | None:
        return None


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
