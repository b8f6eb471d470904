"""Neurotoxin: a backdoor only in the parameters that honest clients hardly move, where it stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.registry import register
from . import Knowledge, View


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
