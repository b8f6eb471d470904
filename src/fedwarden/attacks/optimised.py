"""Forged updates that hide in the spread of the honest ones; all attackers send the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from ..core.errors import one_of
from ..core.registry import register
from . import Knowledge, View

Direction = Literal["unit", "std", "sign"]


def alie_z(n: int, f: int) -> float:
    """How many deviations from the mean f of n clients can go and still have enough honest ones further out.

        s = floor(n / 2 + 1) - f,   z = Phi^-1((n - f - s) / (n - f))

    Baruch et al., A Little Is Enough (2019), algorithm 3. Below f = n / 10 or so it is 0 or less: too few to hide.

    >>> round(alie_z(50, 24), 3)
    1.426
    """
    if n < 3 or not 0 < 2 * f <= n:
        raise ValueError(f"alie needs n >= 3 clients and 0 < f <= n / 2 attackers; got n={n}, f={f}")
    supporters = n // 2 + 1 - f
    return float(ndtri((n - f - supporters) / (n - f)))


def alie(honest: Tensor, z: float) -> Tensor:
    """The mean of the honest updates less z deviations in every coordinate.

        u = mu - z sigma

    Baruch et al. (2019), algorithm 3; sigma divides by the number of updates, so that it is 0 for one.

    >>> alie(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), z=0.5).tolist()
    [0.5, 1.0]
    """
    return honest.mean(dim=0) - z * honest.std(dim=0, correction=0)


def ipm(honest: Tensor, epsilon: float) -> Tensor:
    """The mean of the honest updates backwards: its inner product with the true one is negative.

        u = -epsilon mu

    Xie et al., Fall of Empires (2019).

    >>> ipm(torch.tensor([[1.0, 3.0], [3.0, 1.0]]), epsilon=0.5).tolist()
    [-1.0, -1.0]
    """
    return -epsilon * honest.mean(dim=0)


def perturbation(honest: Tensor, direction: Direction) -> Tensor:
    """Where to push the mean: against it, against the deviations, or against its signs.

        p = -mu / ||mu||   or   -sigma   or   -sign(mu)

    Shejwalkar and Houmansadr, Manipulating the Byzantine (2021).

    >>> perturbation(torch.tensor([[3.0, 4.0]]), "unit").tolist()
    [-0.6000000238418579, -0.800000011920929]
    """
    mean = honest.mean(dim=0)
    if direction == "std":
        return -honest.std(dim=0, correction=0)
    return -mean.sign() if direction == "sign" else -mean / mean.norm().clamp_min(torch.finfo(mean.dtype).tiny)


def min_max(honest: Tensor, push: Tensor) -> Tensor:
    """The mean pushed until its largest distance to an honest update is the largest between two of them.

        u = mu + gamma p,   gamma = max{g: max_i ||mu + g p - x_i|| <= max_ij ||x_i - x_j||}

    Shejwalkar and Houmansadr (2021), Min-Max. Differs from the paper: each i gives a quadratic in g, so gamma is
    the smallest of their roots and needs no search.

    >>> min_max(torch.tensor([[0.0], [2.0]]), torch.tensor([-1.0])).tolist()
    [0.0]
    """
    x, p = honest.double(), push.double()
    gap = x.mean(dim=0) - x
    limit = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").max().square()
    a, b, c = p @ p, gap @ p, gap.square().sum(dim=1) - limit
    gamma = float(((b.square() - a * c).clamp_min(0).sqrt() - b).min() / a) if a > 0 else 0.0
    return (x.mean(dim=0) + gamma * p).to(honest.dtype)


def min_sum(honest: Tensor, push: Tensor) -> Tensor:
    """The mean pushed until its squared distances to the honest updates add up to the largest such sum of theirs.

        u = mu + gamma p,   gamma = max{g: sum_i ||mu + g p - x_i||^2 <= max_i sum_j ||x_i - x_j||^2}

    Shejwalkar and Houmansadr (2021), Min-Sum. Differs from the paper: solved for gamma, by the parallel axis
    theorem, sum_j ||u - x_j||^2 = sum_j ||mu - x_j||^2 + n ||u - mu||^2: as far from the mean as the furthest of them.

    >>> min_sum(torch.tensor([[0.0], [2.0]]), torch.tensor([-1.0])).tolist()
    [0.0]
    """
    x, p = honest.double(), push.double()
    furthest, length = (x - x.mean(dim=0)).norm(dim=1).max(), p.norm()
    gamma = float(furthest / length) if length > 0 else 0.0
    return (x.mean(dim=0) + gamma * p).to(honest.dtype)


@register("attack", "alie", exempt={"nobody-honest": "it needs honest clients to hide among"})
@dataclass(frozen=True)
class ALIE:
    """A little is enough: the mean less z deviations, with z from the numbers of clients and attackers."""

    z: float | None = None
    knowledge: Knowledge = "own"

    def __post_init__(self) -> None:
        one_of("knowledge", self.knowledge, Knowledge)

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        z = alie_z(view.n, len(view.own)) if self.z is None else self.z
        return alie(view.honest, z).expand_as(view.own)


@register("attack", "ipm")
@dataclass(frozen=True)
class IPM:
    """Inner product manipulation: the honest mean backwards."""

    epsilon: float = 0.5
    knowledge: Knowledge = "all"

    def __post_init__(self) -> None:
        one_of("knowledge", self.knowledge, Knowledge)

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        return ipm(view.honest, self.epsilon).expand_as(view.own)


@register("attack", "min_max")
@dataclass(frozen=True)
class MinMax:
    """As far off as the two honest updates that are furthest apart."""

    direction: Direction = "std"
    knowledge: Knowledge = "all"

    def __post_init__(self) -> None:
        one_of("knowledge", self.knowledge, Knowledge)
        one_of("direction", self.direction, Direction)

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        return min_max(view.honest, perturbation(view.honest, self.direction)).expand_as(view.own)


@register("attack", "min_sum")
@dataclass(frozen=True)
class MinSum:
    """As far off, in the sum of squares, as the honest update furthest from the rest."""

    direction: Direction = "std"
    knowledge: Knowledge = "all"

    def __post_init__(self) -> None:
        one_of("knowledge", self.knowledge, Knowledge)
        one_of("direction", self.direction, Direction)

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        return min_sum(view.honest, perturbation(view.honest, self.direction)).expand_as(view.own)
