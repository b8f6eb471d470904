"""How a client takes its steps: the settings, and SGD or Adam in fixed memory, for all clients or for one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from .stacked import Factors, matrix


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: optimiser, epochs, batches, and the FedProx pull towards the global model.

    ``steps`` ends a round's training after so many batches; one of fewer samples than ``smallest_batch`` is left out.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    epochs: int = 1
    batch_size: int = 32
    proximal: float = 0.0
    steps: int | None = None
    smallest_batch: int = 1


class FusedOptimizer:
    """SGD or Adam through torch's fused kernels, with a state in fixed memory: of stacked parameters or of one model's.

    Of stacked parameters clients that have finished, the last of the group, are left out.
    """

    def __init__(self, training: LocalTraining, weights: Sequence[Tensor], origin: Sequence[Tensor]) -> None:
        self.training, self.origin = training, origin
        adaptive = training.optimizer == "adam"
        self.plain = not (adaptive or training.momentum or training.weight_decay or training.proximal)
        self.first = [torch.zeros_like(w) for w in weights] if adaptive or training.momentum else []
        self.second = [torch.zeros_like(w) for w in weights] if adaptive else []
        self.taken = [torch.zeros((), dtype=torch.float32, device=w.device) for w in weights]

    def reset(self) -> None:
        """Back to no step taken, in the same memory."""
        for tensor in (*self.first, *self.second, *self.taken):
            tensor.zero_()

    def step(self, weights: Sequence[Tensor], factors: Sequence[Factors], which: Sequence[int] | None = None) -> None:
        """One step of the clients these weights belong to, the first of the group; ``which`` parameters they are."""
        active, grads = len(weights[0]), list[Tensor]()
        which = range(len(weights)) if which is None else which
        for i, weight in zip(which, weights, strict=True):
            left, right = factors[i // 2]
            if self.plain:  # the gradient goes into the weights as it is formed
                self._straight_down(weight, left, None if i % 2 else right)
            else:
                grads.append(left.sum(dim=2) if i % 2 else torch.bmm(left, right.mT).reshape(weight.shape))
        if grads:
            self._down(weights, grads, which, lambda moment: moment[:active])

    def down(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """One step down the gradients; what has none stays where it is."""
        used = [i for i, g in enumerate(gradients) if g is not None]
        self._down([weights[i] for i in used], [g for g in gradients if g is not None], used, lambda moment: moment)

    def _straight_down(self, weight: Tensor, left: Tensor, right: Tensor | None) -> None:
        """A step of plain SGD: of a weight, or of a bias, whose gradient has no right factor."""
        if right is None:
            weight.sub_(left.sum(dim=2), alpha=self.training.lr)
        else:
            matrix(weight).baddbmm_(left, right.mT, alpha=-self.training.lr)

    def _down(
        self,
        weights: Sequence[Tensor],
        grads: Sequence[Tensor],
        which: Sequence[int],
        part: Callable[[Tensor], Tensor],
    ) -> None:
        t = self.training
        if t.proximal:
            pairs = zip(grads, weights, which, strict=True)
            grads = [g.add_(w - self.origin[i], alpha=t.proximal) for g, w, i in pairs]
        first, second = ([part(moment[i]) for i in which if moment] for moment in (self.first, self.second))
        p, g = list(weights), list(grads)
        if t.optimizer == "adam":
            taken = [self.taken[i] for i in which]
            adam(
                p, g, first, second, [], taken, fused=True, amsgrad=False, beta1=0.9, beta2=0.999, lr=t.lr,
                weight_decay=t.weight_decay, eps=1e-8, maximize=False,
            )  # fmt: skip
        else:
            buffers: list[Tensor | None] = [*first] if first else [None] * len(p)
            sgd(
                p, g, buffers, fused=True, weight_decay=t.weight_decay, momentum=t.momentum, lr=t.lr,
                dampening=0.0, nesterov=False, maximize=False,
            )  # fmt: skip
