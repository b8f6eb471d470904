"""Relocated orthogonal perturbation: aside from the last aggregate, where centred clipping starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from fedwarden.attacks import Knowledge, View
from fedwarden.core.registry import register


def turned(reference: Tensor, angle: float) -> Tensor:
    """The unit vector at an angle, in degrees, to a reference, in its plane with the vector of ones.

        p = 1 - (1.r / r.r) r,   D = sin(angle) p / |p| + cos(angle) r / |r|

    Ozfatura et al., Byzantines Can Also Learn From History: Fall of Centered Clipping in Federated Learning (2024).

    >>> turned(torch.tensor([2.0, 0.0]), 90.0).round(decimals=3).tolist()
    [0.0, 1.0]
    """
    r = _unit(reference)
    ones = torch.ones_like(r)
    return math.sin(math.radians(angle)) * _unit(ones - (ones @ r) * r) + math.cos(math.radians(angle)) * r


def place(mean: Tensor, previous: Tensor | None, share: float) -> Tensor:
    """A point between the honest mean and the last aggregate; that is 0 where there is none.

        share previous + (1 - share) mean

    >>> place(torch.tensor([1.0]), torch.tensor([3.0]), 0.5).tolist()
    [2.0]
    """
    return (1 - share) * mean if previous is None else share * previous + (1 - share) * mean


@register("attack", "rop")
@dataclass(frozen=True)
class ROP:
    """Aside from the last aggregate: at an angle to it and of a fixed distance from it, all the same.

    ``relocation`` is the paper's pi, from the honest mean (0) to the last aggregate (1), and ``reference`` its lambda,
    what the angle is taken to. Differs from the paper: without a ``length``, the push is as long as the honest updates
    are distant from that point on average.
    """

    relocation: float = 1.0
    reference: float = 0.9
    angle: float = 90.0
    length: float | None = None
    knowledge: Knowledge = "all"

    def __post_init__(self) -> None:
        if not 0 <= self.relocation <= 1 or not 0 <= self.reference <= 1:
            raise ValueError(f"relocation and reference lie in [0, 1]; got {self.relocation} and {self.reference}")
        if self.length is not None and self.length < 0:
            raise ValueError(f"length is not below 0; got {self.length}")
        if self.knowledge not in get_args(Knowledge):
            raise ValueError(f"knowledge is 'own' or 'all'; got {self.knowledge!r}")

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        mean, previous = view.honest.mean(dim=0), view.previous
        centre = place(mean, previous, self.relocation)
        reference = mean if previous is None else place(mean, previous, self.reference)
        length = float((view.honest - centre).norm(dim=1).mean()) if self.length is None else self.length
        return (centre + length * turned(reference, self.angle)).expand_as(view.own)


def _unit(x: Tensor) -> Tensor:
    length: Tensor = x.norm()
    return x / length.clamp_min(torch.finfo(x.dtype).tiny)
