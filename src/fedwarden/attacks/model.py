"""Forged updates that need no optimisation: made from the attackers' own, or taken from somebody else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.errors import one_of
from ..core.registry import register
from . import Knowledge, View, generator


def noise_like(x: Tensor, size: float, rng: np.random.Generator) -> Tensor:
    """White Gaussian noise, each row of it ``size`` times as long as that row of x, in expectation of the square.

    e_i ~ N(0, (size ||x_i||)^2 / d)
    """
    drawn = torch.randn(x.shape, generator=generator(rng)).to(x)
    lengths: Tensor = x.norm(dim=1, keepdim=True)
    return size / math.sqrt(x.shape[1]) * lengths * drawn


@register("attack", "sign_flip")
@dataclass(frozen=True)
class SignFlip:
    """The own update backwards, ``scale`` times as long (Li et al., RSA, 2019)."""

    scale: float = 1.0
    knowledge: ClassVar[Knowledge] = "own"

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        return -self.scale * view.own


@register("attack", "scaling")
@dataclass(frozen=True)
class Scaling:
    """The own update times a factor, to outweigh the others (model replacement, Bagdasaryan et al., 2020)."""

    factor: float = 10.0
    knowledge: ClassVar[Knowledge] = "own"

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        return self.factor * view.own


@register("attack", "gaussian")
@dataclass(frozen=True)
class Gaussian:
    """White noise of deviation ``sigma`` in place of the update; by default as long as the own one."""

    sigma: float | None = None
    knowledge: ClassVar[Knowledge] = "own"

    def __post_init__(self) -> None:
        if self.sigma is not None and self.sigma < 0:
            raise ValueError(f"sigma is a deviation, not below 0; got {self.sigma}")

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        if self.sigma is None:
            return noise_like(view.own, 1.0, rng)
        return self.sigma * torch.randn(view.own.shape, generator=generator(rng)).to(view.own)


@register("attack", "free_rider")
@dataclass(frozen=True)
class FreeRider:
    """Does not train: sends the last change of the global model with a little noise, or nothing (Lin et al., 2019).

    In the first round, when there was no change yet, it sends nothing.
    """

    mode: Literal["previous", "zero"] = "previous"
    noise: float = 0.1
    knowledge: ClassVar[Knowledge] = "own"

    def __post_init__(self) -> None:
        one_of("mode", self.mode, Literal["previous", "zero"])

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        if self.mode == "zero" or view.previous is None:
            return torch.zeros_like(view.own)
        copies = view.previous.expand_as(view.own)
        return copies + noise_like(copies, self.noise, rng)


@register("attack", "sybil")
@dataclass(frozen=True)
class Sybil:
    """All send one update, ``scale`` times the mean of their own, with a little noise (FoolsGold, Fung et al., 2020).

    With ``scale = 1`` and a data attack on the same clients it is the paper's: poisoned alike, sent alike.
    """

    scale: float = -1.0
    noise: float = 0.01
    knowledge: ClassVar[Knowledge] = "own"

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        copies = (self.scale * view.own.mean(dim=0)).expand_as(view.own)
        return copies + noise_like(copies, self.noise, rng)


@register("attack", "copy")
@dataclass(frozen=True)
class Copy:
    """The update of the first honest client of the same round, ``scale`` times as long, in place of the own one.

    A guard that takes copies for Sybils turns on the client that was copied.
    """

    scale: float = 1.0
    knowledge: ClassVar[Knowledge] = "all"

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        return (self.scale * view.honest[0]).expand_as(view.own)
