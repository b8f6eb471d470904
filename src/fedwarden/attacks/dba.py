"""A distributed backdoor: every attacker trains on a part of the trigger, and the whole of it is shown to the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..core.registry import register
from . import Examples
from .pixels import images

BARS = 4


def draw_bars(x: Tensor, bars: Sequence[int], size: int, gap: int, value: float) -> Tensor:
    """Images (n, channels, height, width) with some of four bars of one value in the top left corner.

    Bars 0 and 1 lie in the first row, 2 and 3 ``gap`` rows below; each is one pixel high and ``size`` wide, with
    ``gap`` pixels between the two of a row. Xie et al., DBA: Distributed Backdoor Attacks against Federated Learning
    (2020); size 4 and gap 2 are theirs on MNIST.

    >>> import torch
    >>> draw_bars(torch.zeros(1, 1, 3, 3), [0, 3], size=1, gap=1, value=1.0)[0, 0].tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    height, width = images(x).shape[2:]
    if gap + 2 > height or 2 * size + gap > width:
        raise ValueError(
            f"a trigger of {gap + 2} x {2 * size + gap} pixels does not fit into images of {(height, width)}"
        )
    out = x.clone()
    for bar in bars:
        left = (bar % 2) * (size + gap)
        out[:, :, (bar // 2) * (gap + 1), left : left + size] = value
    return out


@register("attack", "dba")
@dataclass(frozen=True)
class DBA:
    """A trigger of four bars that the attackers share out; success is measured with the whole of it.

    ``bars`` are those that a client draws; the clients of one attack are dealt theirs.
    """

    target: int = 0
    fraction: float = 0.5
    size: int = 3
    gap: int = 1
    value: float = 1.0
    bars: tuple[int, ...] = tuple(range(BARS))

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction lies in [0, 1]; got {self.fraction}")
        if self.size < 1 or self.gap < 0:
            raise ValueError(f"size is at least 1 pixel and gap not below 0; got {self.size} and {self.gap}")
        if not set(self.bars) <= set(range(BARS)):
            raise ValueError(f"bars are numbered from 0 to {BARS - 1}; got {list(self.bars)}")

    def part(self, i: int, k: int) -> DBA:
        """What attacker i of k does: every k-th of its bars, so that the first four of them cover all."""
        return replace(self, bars=tuple(self.bars)[i % max(len(self.bars), 1) :: k])

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        if not 0 <= self.target < classes:
            raise ValueError(f"target is one of {classes} classes, numbered from 0; got {self.target}")
        chosen = rng.permutation(len(own.y))[: round(self.fraction * len(own.y))]
        x, y = own.x.clone(), own.y.copy()
        x[chosen], y[chosen] = self._draw(own.x[chosen], self.bars), self.target
        return Examples(x, y)

    def goal(self, test: Examples, classes: int) -> Examples | None:
        others = np.flatnonzero(test.y != self.target)
        return Examples(self._draw(test.x[others], range(BARS)), np.full(len(others), self.target))

    def _draw(self, x: Tensor, bars: Sequence[int]) -> Tensor:
        return draw_bars(x, bars, self.size, self.gap, self.value)
