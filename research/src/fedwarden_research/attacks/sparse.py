"""The hybrid sparse attack: strongly at the few parameters that matter most, imperceptibly elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwarden.attacks import Knowledge, View
from fedwarden.attacks.optimised import alie_z
from fedwarden.core.errors import one_of
from fedwarden.core.registry import register


def sensitive(params: Tensor, mean: Tensor, share: float) -> Tensor:
    """A mask of the share of the parameters, at least one, on which the loss depends most.

        s_k = |w_k mu_k|

    Lee et al., SNIP (2019), with the honest mean update, which goes down the gradient, in the place of it.

    >>> sensitive(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, -3.0, 1.0]), share=0.4).tolist()
    [False, True, False]
    """
    count = max(1, round(share * len(params)))
    mask = torch.zeros(len(params), dtype=torch.bool, device=params.device)
    mask[(params * mean).abs().topk(count).indices] = True
    return mask


def hybrid(honest: Tensor, mask: Tensor, scale: float, z: float) -> Tensor:
    """The honest mean less ``scale`` deviations where the mask is set and z deviations elsewhere.

        u = mu - sigma (scale m + z (1 - m))

    Ozfatura et al., Aggressive or Imperceptible, or Both: Network Pruning Assisted Hybrid Byzantines in Federated
    Learning (2024); sigma divides by the number of updates.

    >>> hybrid(torch.tensor([[0.0, 0.0], [2.0, 2.0]]), torch.tensor([True, False]), scale=3.0, z=0.5).tolist()
    [-2.0, 0.5]
    """
    hit = mask.to(honest)
    steps = scale * hit + z * (1 - hit)
    return honest.mean(dim=0) - steps * honest.std(dim=0, correction=0)


@register("attack", "sparse", exempt={"nobody-honest": "it needs honest clients to hide among"})
@dataclass(frozen=True)
class Sparse:
    """``scale`` deviations from the honest mean at a small share of the parameters, and ALIE's z at all others.

    Differs from the paper: it takes its parameters from a pruning of the network before the first round; here they
    are those of the largest weight times mean update in each round.
    """

    density: float = 0.005
    scale: float = 1.5
    z: float | None = None
    knowledge: Knowledge = "all"

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ValueError(f"density lies above 0 and up to 1; got {self.density}")
        one_of("knowledge", self.knowledge, Knowledge)

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        z = alie_z(view.n, len(view.own)) if self.z is None else self.z
        mask = sensitive(view.params, view.honest.mean(dim=0), self.density)
        return hybrid(view.honest, mask, self.scale, z).expand_as(view.own)
