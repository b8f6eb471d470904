"""Broken images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from ..core.registry import register
from . import DataAttack, Examples, generator


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
