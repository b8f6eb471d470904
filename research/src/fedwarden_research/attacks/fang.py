"""Local model poisoning: updates made against one rule, the trimmed mean (or median) or Krum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedwarden.attacks import Knowledge, View, generator
from fedwarden.core.errors import one_of
from fedwarden.core.registry import register

Values = Literal["model", "update"]


def direction(updates: Tensor) -> Tensor:
    """Where each parameter would go without attack: 1 up, -1 down or not at all.

    >>> direction(torch.tensor([[1.0, -3.0], [1.0, 1.0]])).tolist()
    [1.0, -1.0]
    """
    up = updates.mean(dim=0) > 0
    return 2.0 * up.to(updates) - 1.0


def beyond(values: Tensor, s: Tensor, b: float, drawn: Tensor) -> Tensor:
    """Values outside of the range of the honest ones, on the side that a parameter would move away from.

        s = -1:  [max, b max] if max > 0, else [max, max / b]
        s = +1:  [min / b, min] if min > 0, else [b min, min]

    Fang et al., Local Model Poisoning Attacks to Byzantine-Robust Federated Learning (2020), trimmed mean attack
    with full knowledge. ``drawn`` in [0, 1] says where in the interval, from the honest end.

    >>> honest, s = torch.tensor([[1.0, -2.0], [3.0, -4.0]]), torch.tensor([-1.0, 1.0])
    >>> beyond(honest, s, b=2.0, drawn=torch.tensor([[0.0, 0.0], [1.0, 1.0]])).tolist()
    [[3.0, -4.0], [6.0, -8.0]]
    """
    edge = torch.where(s > 0, values.amin(dim=0), values.amax(dim=0))
    end = torch.where(edge * s < 0, edge * b, edge / b)
    return edge + drawn * (end - edge)


def outlying(own: Tensor, s: Tensor, drawn: Tensor) -> Tensor:
    """Values three to four deviations from the mean of one's own, against the way that a parameter would go.

        u = mu - s (3 + r) sigma,   r in [0, 1]

    Fang et al. (2020), trimmed mean attack with partial knowledge; sigma divides by the number of updates.

    >>> outlying(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0]), torch.tensor([[0.0], [1.0]])).tolist()
    [[-2.0], [-3.0]]
    """
    return own.mean(dim=0) - s * (3.0 + drawn) * own.std(dim=0, correction=0)


@register("attack", "fang")
@dataclass(frozen=True)
class Fang:
    """Parameters outside of the honest range, on the side that they would leave: against trimmed mean and median.

    ``values`` says what lies in that range, the clients' models as in the paper or their updates as in its code.
    """

    b: float = 2.0
    values: Values = "model"
    knowledge: Knowledge = "all"

    def __post_init__(self) -> None:
        if not self.b > 1:
            raise ValueError(f"b is above 1; got {self.b}")
        one_of("values", self.values, Values)
        _known(self.knowledge)

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        drawn = torch.rand(view.own.shape, generator=generator(rng)).to(view.own)
        if view.others is None or not len(view.others):
            return outlying(view.own, direction(view.own), drawn)
        base = view.params if self.values == "model" else torch.zeros_like(view.params)
        s = direction(torch.cat([view.own, view.others]))
        return beyond(base + view.others, s, self.b, drawn) - base


def krum_bound(benign: Tensor, f: int) -> float:
    """How far f equal updates -lambda s can go and might still have the smallest score of Krum.

        lambda <= sqrt(min_i sum_{l nearest n-f-2} |x_i - x_l|^2 / ((n - 2f - 1) d)) + max_i |x_i| / sqrt(d)

    Fang et al. (2020), theorem 1; n - f are the benign ones x_i, and neighbours are benign.

    >>> krum_bound(torch.tensor([[1.0], [1.0], [1.0]]), f=1)
    1.0
    """
    honest, d = benign.shape
    if honest < f + 2:
        raise ValueError(f"fang_krum needs n >= 2f + 2 clients; got n={honest + f}, f={f}")
    nearest = _squares(benign).sort(dim=1).values[:, 1 : honest - 1]  # without itself, n - f - 2 of them
    spread = float(nearest.sum(dim=1).min()) / ((honest - f - 1) * d)
    return math.sqrt(spread) + float(benign.double().norm(dim=1).max()) / math.sqrt(d)


def krum_strength(benign: Tensor, s: Tensor, f: int, threshold: float) -> float:
    """The first lambda, from the bound down by halves, with which Krum picks one of f updates -lambda s; else 0.

        score(x) = sum over its n - f - 2 nearest of |x - x_l|^2

    Fang et al. (2020), Krum attack with full knowledge; s has entries 1 and -1, so that no update has
    to be formed on the way: |x + lambda s|^2 = |x|^2 + 2 lambda x.s + lambda^2 d.

    >>> krum_strength(torch.tensor([[-2.0], [0.0], [2.0]]), torch.tensor([1.0]), f=1, threshold=1e-5)
    4.0
    """
    x, honest = benign.double(), len(benign)
    between, lengths, along, size = _squares(x), x.square().sum(dim=1), x @ s.double(), float(s.double() @ s.double())
    strength = krum_bound(benign, f)
    while strength >= threshold:
        away = (lengths + 2 * strength * along + strength**2 * size).clamp_min(0.0)
        theirs = torch.cat([between, away[:, None].expand(-1, f)], dim=1).sort(dim=1).values[:, 1 : honest - 1]
        ours = torch.cat([torch.zeros(f - 1).to(away), away]).sort().values[: honest - 2]
        if ours.sum() <= theirs.sum(dim=1).min():
            return strength
        strength /= 2
    return 0.0


def krum_strength_alone(own: Tensor, s: Tensor, threshold: float) -> float:
    """The same where attackers know their own updates only and take those for the benign ones.

    Fang et al. (2020), Krum attack with partial knowledge: one forged update among them, then two, until Krum
    would pick one. Differs from the paper: where they are too few to say, as long as the longest of their own.

    >>> round(2**0.5 * krum_strength_alone(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 1.0]), 1e-5), 6)
    5.0
    """
    for f in range(1, len(own) - 1):
        if strength := krum_strength(own, s, f, threshold):
            return strength
    return float(own.double().norm(dim=1).max()) / math.sqrt(own.shape[1])


@register("attack", "fang_krum")
@dataclass(frozen=True)
class FangKrum:
    """All parameters one step back from where they would go, as far as Krum still picks it.

    The first sends it, and the others support it with what lies within ``epsilon`` of it.
    Where Krum picks none down to ``threshold``, all send what they trained.
    """

    epsilon: float = 0.01
    threshold: float = 1e-5
    knowledge: Knowledge = "all"

    def __post_init__(self) -> None:
        if self.epsilon < 0 or not self.threshold > 0:
            raise ValueError(
                f"epsilon is not below 0 and threshold is positive; got {self.epsilon} and {self.threshold}"
            )
        _known(self.knowledge)

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        own, others = view.own, view.others
        if others is None or not len(others):
            s = direction(own)
            strength = krum_strength_alone(own, s, self.threshold)
        else:
            s = direction(torch.cat([own, others]))
            strength = krum_strength(others, s, len(own), self.threshold)
        if not strength:
            return own.clone()
        off = 2 * torch.rand(own.shape, generator=generator(rng)).to(own) - 1
        off[0] = 0.0
        return -strength * s + self.epsilon / math.sqrt(own.shape[1]) * off


def _squares(x: Tensor) -> Tensor:
    return torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist").square()


def _known(knowledge: str) -> None:
    if knowledge not in get_args(Knowledge):
        raise ValueError(f"knowledge is 'own' or 'all'; got {knowledge!r}")
