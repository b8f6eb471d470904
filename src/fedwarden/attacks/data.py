"""Poisoned or broken training data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.registry import register


def derangement(k: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """A random permutation of 0..k-1 that moves every element.

    >>> all((derangement(5, np.random.default_rng(s)) != np.arange(5)).all() for s in range(20))
    True
    """
    if k < 2:
        raise ValueError(f"a derangement needs at least 2 classes; got {k}")
    while True:
        order = rng.permutation(k)
        if (order != np.arange(k)).all():
            return order


def flip_labels(
    y: NDArray[np.int64], mapping: NDArray[np.int64], fraction: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Replace a random fraction of the labels by what a mapping says of them.

    >>> flip_labels(np.array([0, 1, 2]), np.array([1, 2, 0]), 1.0, np.random.default_rng(0)).tolist()
    [1, 2, 0]
    """
    chosen = rng.permutation(len(y))[: round(fraction * len(y))]
    out = y.copy()
    out[chosen] = mapping[y[chosen]]
    return out


def add_noise(x: Tensor, snr: float, generator: torch.Generator) -> Tensor:
    """Add white Gaussian noise at a signal-to-noise ratio in decibels.

    x' = x + N(0, P / 10^(snr / 10)),   P = mean(x^2)
    """
    deviation = (x.square().mean() / 10 ** (snr / 10)).sqrt()
    return x + deviation * torch.randn(x.shape, generator=generator)


@register("attack", "label_flip")
@dataclass(frozen=True)
class LabelFlip:
    """Labels swapped by a random derangement of the classes, in pairs, or all to one class."""

    fraction: float = 1.0
    mode: Literal["derangement", "pairwise", "constant"] = "derangement"
    target: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction lies in [0, 1]; got {self.fraction}")
        if self.mode not in ("derangement", "pairwise", "constant"):
            raise ValueError(f"mode is 'derangement', 'pairwise' or 'constant'; got {self.mode!r}")

    def __call__(
        self, x: Tensor, y: NDArray[np.int64], classes: int, rng: np.random.Generator
    ) -> tuple[Tensor, NDArray[np.int64]]:
        if self.mode == "pairwise":
            mapping = np.arange(classes)[::-1].copy()
        elif self.mode == "constant":
            if not 0 <= self.target < classes:
                raise ValueError(f"target is one of {classes} classes, numbered from 0; got {self.target}")
            mapping = np.full(classes, self.target)
        else:
            mapping = derangement(classes, rng)
        return x, flip_labels(y, mapping, self.fraction, rng)


@register("attack", "feature_noise")
@dataclass(frozen=True)
class FeatureNoise:
    """White Gaussian noise on the features at a signal-to-noise ratio in decibels."""

    snr: float = 0.0

    def __call__(
        self, x: Tensor, y: NDArray[np.int64], classes: int, rng: np.random.Generator
    ) -> tuple[Tensor, NDArray[np.int64]]:
        return add_noise(x, self.snr, torch.Generator().manual_seed(int(rng.integers(2**62)))), y
