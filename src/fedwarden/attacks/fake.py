"""Clients that hold no data at all and pull the model towards one that is of no use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.registry import register
from . import Knowledge, View


@register("attack", "mpaf")
@dataclass(frozen=True)
class MPAF:
    """Fake clients pull the model towards one drawn at random: ``factor`` times the way from the model to it.

        x_i = factor (w' - w_t),   w'_j ~ N(0, deviation^2)

    Cao and Gong, MPAF: Model Poisoning Attacks to Federated Learning based on Fake Clients (2022), equation 3. It needs
    no data and no knowledge of other clients; ``base`` numbers the model w', the same in every round.
    """

    factor: float = 10.0
    deviation: float = 0.1
    base: int = 0
    knowledge: ClassVar[Knowledge] = "own"

    def __post_init__(self) -> None:
        if not (self.deviation >= 0 and self.base >= 0):
            raise ValueError(f"deviation and base are not below 0; got {self.deviation} and {self.base}")

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        base = torch.randn(len(view.params), generator=torch.Generator().manual_seed(self.base)).to(view.params)
        return (self.factor * (self.deviation * base - view.params)).to(view.own).expand_as(view.own)
