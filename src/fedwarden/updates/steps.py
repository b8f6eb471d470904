"""Rows that are steps from a common vector, made of other rows as they are read."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.stats import Weights
from .mixed import Formed
from .segments import Segment
from .updates import Updates


class Steps(Formed):
    """One row per row of other updates: a multiple of it and a multiple of a common vector.

        y_i = a_i c + b_i x_i  in the columns that are measured;   y_i = 0  in the others

    Nothing of size n x d is made: a row is formed when it is read.

    >>> import numpy as np
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
