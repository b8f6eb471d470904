"""What becomes of an update on its way: rounded to few bits, or with noise for privacy. No harm is meant by either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.registry import register
from . import Knowledge, View
from .model import noise_like


def quantise(x: Tensor, bits: int) -> Tensor:
    """Round each row to 2^bits - 1 evenly spaced values.

        s_i = max_k |x_ik| / (2^(bits-1) - 1),   x'_ik = s_i round(x_ik / s_i)

    >>> quantise(torch.tensor([[1.0, 0.4, -0.6, 0.0]]), bits=2).tolist()
    [[1.0, 0.0, -1.0, 0.0]]
    """
    step: Tensor = x.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.nan_to_num(x / step).round() * step  # a row of zeros has no scale


@register("attack", "quantised")
@dataclass(frozen=True)
class Quantised:
    """The own update rounded to a few bits per number, with one scale for all of it."""

    bits: int = 8
    knowledge: ClassVar[Knowledge] = "own"

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 24:
            raise ValueError(f"bits lies between 2 and 24; got {self.bits}")

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        return quantise(view.own, self.bits)


@register("attack", "noised")
@dataclass(frozen=True)
class Noised:
    """The own update with Gaussian noise, as differential privacy adds it; the noise is ``ratio`` times as long."""

    ratio: float = 1.0
    knowledge: ClassVar[Knowledge] = "own"

    def __post_init__(self) -> None:
        if not self.ratio > 0:
            raise ValueError(f"ratio must be positive; got {self.ratio}")

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        return view.own + noise_like(view.own, self.ratio, rng)
