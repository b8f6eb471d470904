"""Broken and bugged images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from ..core.registry import register
from . import DataAttack, Examples, generator

Corner = Literal["top-left", "top-right", "bottom-left", "bottom-right", "centre"]


def add_noise(x: Tensor, snr: float, generator: torch.Generator) -> Tensor:
    """Add white Gaussian noise at a signal-to-noise ratio in decibels.

    x' = x + N(0, P / 10^(snr / 10)),   P = mean(x^2)
    """
    deviation = (x.square().mean() / 10 ** (snr / 10)).sqrt()
    return x + deviation * torch.randn(x.shape, generator=generator)


def rotate(x: Tensor, angle: float) -> Tensor:
    """Images (n, channels, height, width) turned anticlockwise by an angle in degrees; what comes in is 0.

    >>> rotate(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 90.0).tolist()
    [[[[2.0, 4.0], [1.0, 3.0]]]]
    """
    turned = ndimage.rotate(images(x).numpy(), angle, axes=(3, 2), reshape=False, order=1)
    return torch.from_numpy(turned)


def invert(x: Tensor) -> Tensor:
    """Inputs mirrored in their range, so that bright becomes dark: x' = min + max - x.

    >>> invert(torch.tensor([[0.0, 0.25, 1.0]])).tolist()
    [[1.0, 0.75, 0.0]]
    """
    return x.min() + x.max() - x if x.numel() else x.clone()


def blur(x: Tensor, sigma: float) -> Tensor:
    """Images (n, channels, height, width) smoothed by a Gaussian of deviation sigma, in pixels; edges are continued.

    >>> blur(torch.full((1, 1, 3, 3), 7.0), sigma=1.0).unique().tolist()
    [7.0]
    """
    smooth = ndimage.gaussian_filter(images(x).numpy(), (0, 0, sigma, sigma), mode="nearest")
    return torch.from_numpy(smooth)


def stamp(x: Tensor, size: int, corner: Corner, value: float) -> Tensor:
    """Images (n, channels, height, width) with a square of one value in a corner, or in the middle.

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


def images(x: Tensor) -> Tensor:
    """The inputs, if they are images (n, channels, height, width)."""
    if x.ndim != 4:
        raise ValueError(f"needs images of channels x height x width; got inputs of shape {tuple(x.shape[1:])}")
    return x


@register("attack", "feature_noise")
@dataclass(frozen=True)
class FeatureNoise:
    """White Gaussian noise on the features at a signal-to-noise ratio in decibels."""

    snr: float = 0.0

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        return Examples(add_noise(own.x, self.snr, generator(rng)), own.y)


@register("attack", "rotation", exempt={"random-samples": "every image is changed alike"})
@dataclass(frozen=True)
class Rotation:
    """Images turned by an angle in degrees, anticlockwise."""

    angle: float = 90.0

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        return Examples(rotate(own.x, self.angle), own.y)


@register("attack", "invert", exempt={"random-samples": "every input is changed alike"})
@dataclass(frozen=True)
class Invert:
    """Inverted images, or other inputs mirrored in the range that the client's own have."""

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        return Examples(invert(own.x), own.y)


@register("attack", "blur", exempt={"random-samples": "every image is changed alike"})
@dataclass(frozen=True)
class Blur:
    """Images blurred by a Gaussian of deviation sigma, in pixels."""

    sigma: float = 1.0

    def __post_init__(self) -> None:
        if not self.sigma > 0:
            raise ValueError(f"sigma must be positive; got {self.sigma}")

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        return Examples(blur(own.x, self.sigma), own.y)


@register("attack", "corruption")
@dataclass(frozen=True)
class Corruption:
    """A third of the images with noise, a third rotated, a third blurred."""

    snr: float = 0.0
    angle: float = 90.0
    sigma: float = 1.0

    def __post_init__(self) -> None:
        Blur(self.sigma)

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        x = images(own.x).clone()
        kinds: tuple[DataAttack, ...] = (FeatureNoise(self.snr), Rotation(self.angle), Blur(self.sigma))
        for kind, third in zip(kinds, np.array_split(rng.permutation(len(x)), 3), strict=True):
            if len(third):
                x[third] = kind.poison(Examples(x[third], own.y[third]), pool, classes, rng).x
        return Examples(x, own.y)


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
        if self.corner not in get_args(Corner):
            raise ValueError(f"corner is one of {', '.join(get_args(Corner))}; got {self.corner!r}")

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        if not 0 <= self.target < classes:
            raise ValueError(f"target is one of {classes} classes, numbered from 0; got {self.target}")
        chosen = rng.permutation(len(own.y))[: round(self.fraction * len(own.y))]
        x, y = own.x.clone(), own.y.copy()
        x[chosen], y[chosen] = self._stamp(own.x[chosen]), self.target
        return Examples(x, y)

    def goal(self, test: Examples, classes: int) -> Examples | None:
        others = np.flatnonzero(test.y != self.target)
        return Examples(self._stamp(test.x[others]), np.full(len(others), self.target))

    def _stamp(self, x: Tensor) -> Tensor:
        return stamp(x, self.size, self.corner, self.value)
