"""Rare inputs, which honest clients hardly hold, labelled as a target class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import one_of
from ..core.registry import register
from . import Examples
from .pixels import images

Rare = Literal["negative", "tail"]


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
        for name, label in (("target", self.target), ("source", self.source)):
            if label is not None and not 0 <= label < classes:
                raise ValueError(f"{name} is one of {classes} classes, numbered from 0; got {label}")
        theirs = self._source(own.y)
        x, y = own.x.clone(), own.y.copy()
        if self.rare == "tail":
            y[theirs[tail(images(own.x)[theirs], own.y[theirs], self.fraction)]] = self.target
        else:
            chosen = rng.permutation(theirs)[: round(self.fraction * len(theirs))]
            x[chosen], y[chosen] = negative(own.x[chosen]), self.target
        return Examples(x, y)

    def goal(self, test: Examples, classes: int) -> Examples | None:
        rows = self._source(test.y)
        if self.rare == "tail":
            rows = rows[tail(images(test.x)[rows], test.y[rows], self.fraction)]
            return Examples(test.x[rows], np.full(len(rows), self.target))
        return Examples(negative(test.x[rows]), np.full(len(rows), self.target))

    def _source(self, y: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.flatnonzero(y != self.target if self.source is None else y == self.source)
