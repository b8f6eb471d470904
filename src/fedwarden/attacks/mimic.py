"""All attackers send what one honest client sends, so that it counts for many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.registry import register
from . import Knowledge, View


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
