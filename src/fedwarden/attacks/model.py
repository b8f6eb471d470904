"""Updates that need no optimisation: made from the clients' own, as by rounding on the way, or another's."""

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


def most_apart(honest: Tensor) -> int:
    """The update that lies furthest out along the direction in which the updates vary most.

        z = argmax_{|z| = 1} sum_i (z . (x_i - mu))^2,   i* = argmax_i |z . x_i|

    Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing (2022), appendix. Differs
    from the paper: the sums run over one round, and z comes from an eigenvalue problem in place of Oja's rule.

    >>> most_apart(torch.tensor([[0.0, 1.0], [0.0, -1.0], [3.0, 0.0]]))
    2
    """
    x = honest.double()
    centred = x - x.mean(dim=0)
    axis = centred.T @ torch.linalg.eigh(centred @ centred.T).eigenvectors[:, -1]
    return int((x @ axis).abs().argmax())


@register("attack", "mimic")
@dataclass(frozen=True)
class Mimic:
    """All send the update of one honest client, the ``victim``; by default of the one furthest from the rest.

    The victim is fixed where its number is given. Without one it is chosen anew in every round.
    """

    victim: int | None = None
    knowledge: ClassVar[Knowledge] = "all"

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        if self.victim is None:
            return view.honest[most_apart(view.honest)].expand_as(view.own)
        if view.others is None or str(self.victim) not in view.clients:
            raise ValueError(f"client {self.victim} sends no honest update in round {view.round}")
        return view.others[view.clients.index(str(self.victim))].expand_as(view.own)


def quiet(change: Tensor, top: float) -> Tensor:
    """A mask of all parameters but the share ``top`` that a change of the model moves most.

    Zhang et al., Neurotoxin: Durable Backdoors in Federated Learning (2022), algorithm 1.

    >>> quiet(torch.tensor([0.1, -5.0, 0.2, 3.0]), top=0.5).tolist()
    [True, False, True, False]
    """
    mask = torch.ones(len(change), dtype=torch.bool, device=change.device)
    mask[change.abs().topk(round(top * len(change))).indices] = False
    return mask


@register("attack", "neurotoxin")
@dataclass(frozen=True)
class Neurotoxin:
    """The own update without the share ``top`` of the parameters that the last change of the model moved most.

    It goes with a data attack on the same clients, such as ``backdoor``. In the first round the mean of their own
    updates stands for that change. Differs from the paper: the finished update is projected, not every local step.
    """

    top: float = 0.05
    knowledge: ClassVar[Knowledge] = "own"

    def __post_init__(self) -> None:
        if not 0 <= self.top < 1:
            raise ValueError(f"top lies in [0, 1); got {self.top}")

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        change = view.own.mean(dim=0) if view.previous is None else view.previous
        return view.own * quiet(change, self.top)


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
