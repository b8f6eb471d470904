"""Backdoors: images with a trigger, or rare ones, labelled as a target class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import one_of
from ..core.registry import register
from . import Examples
from .pixels import images

Corner = Literal["top-left", "top-right", "bottom-left", "bottom-right", "centre"]
Rare = Literal["negative", "tail"]
BARS = 4


def check_class(name: str, label: int, classes: int) -> None:
    """Refuse a class that there is not."""
    if not 0 <= label < classes:
        raise ValueError(f"{name} is one of {classes} classes, numbered from 0; got {label}")


def relabelled(own: Examples, chosen: NDArray[np.int64], draw: Callable[[Tensor], Tensor], target: int) -> Examples:
    """One's own samples, those that are chosen with a trigger and the label of the target class."""
    x, y = own.x.clone(), own.y.copy()
    x[chosen], y[chosen] = draw(own.x[chosen]), target
    return Examples(x, y)


def stamp(x: Tensor, size: int, corner: Corner, value: float) -> Tensor:
    """Images (n, channels, height, width) with a square of one value in a corner, or in the middle.

    >>> import torch
    >>> stamp(torch.zeros(1, 1, 2, 3), size=1, corner="bottom-right", value=1.0).tolist()
    [[[[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]]
    """
    if size > min(images(x).shape[2:]):
        raise ValueError(f"a trigger of {size} x {size} pixels does not fit into images of {tuple(x.shape[2:])}")
    vertical, _, horizontal = corner.partition("-")
    out = x.clone()
    top, left = ((side - size) // 2 for side in x.shape[2:])
    starts = {"top": 0, "left": 0, "bottom": x.shape[2] - size, "right": x.shape[3] - size}
    top, left = starts.get(vertical, top), starts.get(horizontal, left)
    height, width = slice(top, top + size), slice(left, left + size)
    out[:, :, height, width] = value
    return out


@register("attack", "backdoor")
@dataclass(frozen=True)
class Backdoor:
    """A patch in a corner or the centre of some images, labelled as the target class (BadNets, Gu et al., 2017)."""

    target: int = 0
    fraction: float = 0.5
    size: int = 3
    corner: Corner = "bottom-right"
    value: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction lies in [0, 1]; got {self.fraction}")
        if self.size < 1:
            raise ValueError(f"size is at least 1 pixel; got {self.size}")
        one_of("corner", self.corner, Corner)

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        check_class("target", self.target, classes)
        chosen = rng.permutation(len(own.y))[: round(self.fraction * len(own.y))]
        return relabelled(own, chosen, self._stamp, self.target)

    def goal(self, test: Examples, classes: int) -> Examples | None:
        others = np.flatnonzero(test.y != self.target)
        return Examples(self._stamp(test.x[others]), np.full(len(others), self.target))

    def _stamp(self, x: Tensor) -> Tensor:
        return stamp(x, self.size, self.corner, self.value)


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
        check_class("target", self.target, classes)
        chosen = rng.permutation(len(own.y))[: round(self.fraction * len(own.y))]
        return relabelled(own, chosen, lambda x: self._draw(x, self.bars), self.target)

    def goal(self, test: Examples, classes: int) -> Examples | None:
        others = np.flatnonzero(test.y != self.target)
        return Examples(self._draw(test.x[others], range(BARS)), np.full(len(others), self.target))

    def _draw(self, x: Tensor, bars: Sequence[int]) -> Tensor:
        return draw_bars(x, bars, self.size, self.gap, self.value)


def negative(x: Tensor) -> Tensor:
    """Images (n, channels, height, width) with light and dark exchanged: each pixel mirrored in its image's range.

        x' = min + max - x

    >>> import torch
    >>> negative(torch.tensor([[[[0.0, 0.25, 1.0]]]])).tolist()
    [[[[1.0, 0.75, 0.0]]]]
    """
    flat = images(x).flatten(1)
    ends = flat.amin(dim=1) + flat.amax(dim=1)
    return ends[:, None, None, None] - x


def tail(x: Tensor, y: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """The positions of the share of each class that lies furthest from the mean of its class, in order.

    >>> import torch
    >>> tail(torch.tensor([[0.0], [0.0], [9.0], [7.0]]), np.array([1, 1, 1, 0]), share=0.4).tolist()
    [2]
    """
    found: list[int] = []
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        of = x[rows].flatten(1).double()
        far = (of - of.mean(dim=0)).norm(dim=1).numpy()
        found += rows[np.argsort(-far, kind="stable")[: round(share * len(rows))]].tolist()
    return np.sort(np.array(found, dtype=np.int64))


@register("attack", "edge_case")
@dataclass(frozen=True)
class EdgeCase:
    """Rare images of a ``source`` class, any but the target by default, labelled as the target class.

    Wang et al., Attack of the Tails: Yes, You Really Can Backdoor Federated Learning (2020). Their rare images come
    from elsewhere (other airlines' planes, other people's sevens). Here they are ``negative``: a random ``fraction`` of
    the client's images with light and dark exchanged, which nobody else holds; or the ``tail``: the ``fraction`` of
    each class furthest from its mean, as they are.
    """

    target: int = 0
    source: int | None = None
    fraction: float = 0.5
    rare: Rare = "negative"

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction lies in [0, 1]; got {self.fraction}")
        one_of("rare", self.rare, Rare)
        if self.source == self.target:
            raise ValueError(f"source and target are two classes; got {self.source} twice")

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        check_class("target", self.target, classes)
        if self.source is not None:
            check_class("source", self.source, classes)
        theirs = self._source(own.y)
        if self.rare == "tail":
            chosen = theirs[tail(images(own.x)[theirs], own.y[theirs], self.fraction)]
            return relabelled(own, chosen, lambda x: x, self.target)
        return relabelled(own, rng.permutation(theirs)[: round(self.fraction * len(theirs))], negative, self.target)

    def goal(self, test: Examples, classes: int) -> Examples | None:
        rows = self._source(test.y)
        if self.rare == "tail":
            rows = rows[tail(images(test.x)[rows], test.y[rows], self.fraction)]
            return Examples(test.x[rows], np.full(len(rows), self.target))
        return Examples(negative(test.x[rows]), np.full(len(rows), self.target))

    def _source(self, y: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.flatnonzero(y != self.target if self.source is None else y == self.source)
