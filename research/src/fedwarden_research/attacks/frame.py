"""Attackers who do not harm the model but try to have an honest client excluded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fedwarden.attacks import Knowledge, View
from fedwarden.attacks.model import noise_like
from fedwarden.core.errors import one_of
from fedwarden.core.registry import register

How = Literal["copy", "surround", "oppose", "shrink", "crowd"]
NEAR = 0.05  # of its length: near it, and not the same


def framed(victim: Tensor, others: Tensor, how: How) -> Tensor:
    """What attackers send to make the victim look odd, before noise.

        copy, surround: x_v;   oppose: 2 mean - x_v;   shrink: x_v / 1000;   crowd: the mean of the other honest ones

    A guard that takes copies for Sybils turns on the one that is copied. Mirror images of the victim pull the centre
    away from it; updates of no length make all others look long; who crowds the mean of the others makes the victim
    look farther from it.

    >>> import torch
    >>> framed(torch.tensor([3.0]), torch.tensor([[3.0], [1.0], [2.0]]), "oppose").tolist()
    [1.0]
    """
    mean = others.mean(dim=0)
    made: dict[How, Tensor] = {
        "copy": victim,
        "surround": victim,
        "oppose": 2 * mean - victim,
        "shrink": victim / 1000,
        "crowd": (len(others) * mean - victim) / max(len(others) - 1, 1),
    }
    return made[how]


@register("attack", "frame")
@dataclass(frozen=True)
class Frame:
    """All try to have one honest client excluded, the first of the round, by ``how`` they stand to it.

    ``copy`` sends what it sends, ``surround`` nearly the same, ``oppose`` the mirror image about the mean, ``shrink`` a
    tiny update, and ``crowd`` the mean of the other honest clients.
    """

    how: How = "surround"
    knowledge: ClassVar[Knowledge] = "all"

    def __post_init__(self) -> None:
        one_of("how", self.how, How)

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        rows = framed(view.honest[0], view.honest, self.how).expand_as(view.own)
        return rows if self.how in ("copy", "shrink") else rows + noise_like(rows, NEAR, rng)
