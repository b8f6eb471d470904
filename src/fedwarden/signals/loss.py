"""How well each client's model does on samples that the server holds, with their labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import ConfigError
from ..core.registry import register
from ..core.stats import Scores
from ..core.types import Cohort, Server
from ..models.batched import at_home, each_model, evaluating

Losses = Callable[[Tensor, Tensor], Tensor]
"""Outputs and right answers -> the loss (k,) of each answer."""


def cross_entropies(outputs: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy (k,) of each sample: logits (k, C), classes (k,)."""
    return F.cross_entropy(outputs.float(), labels, reduction="none")


def client_losses(
    cohort: Cohort, model: nn.Module, probe: Tensor, labels: Tensor, losses: Losses | None = None
) -> NDArray[np.float64]:
    """The mean loss of the global model and then of each client's on the samples, (1 + n); by default cross-entropy."""
    samples = at_home(probe, model)
    wanted = labels.to(samples.device)

    def look() -> list[Tensor]:
        return [(losses or cross_entropies)(model(samples), wanted)]

    with evaluating(model):
        found = [each for (each,) in each_model(look, model, cohort)]
    return np.asarray(torch.cat(found).cpu().double().mean(dim=1).numpy(), dtype=np.float64)


def labelled(server: Server | None, user: str, probe: int | None = None) -> tuple[nn.Module, Tensor, Tensor]:
    """A server's model, and the first samples of its probe with their labels; a signal may need all of them."""
    if server is None or server.model is None or not isinstance(server.probe, Tensor) or server.labels is None:
        what = "fw.Server(model=..., probe=..., labels=...)"
        raise ConfigError(f"{user} needs a server with a model and labelled samples: give {what} to Warden.equip")
    return server.model, server.probe[:probe], server.labels[:probe]


@register("signal", "probe_loss")
@dataclass(frozen=True)
class ProbeLoss:
    """Log of each client's loss on the server's samples over the median client's."""

    probe: int = 128
    server: Server | None = field(default=None, compare=False)
    words: ClassVar[str] = "its model is worse on the server's samples"

    def equip(self, server: Server) -> Self:
        labelled(server, "probe_loss")
        return replace(self, server=server)

    def __call__(self, cohort: Cohort) -> Scores:
        judge = self.server.losses if self.server else None
        losses = client_losses(cohort, *labelled(self.server, "probe_loss", self.probe), judge)[1:]
        logs = np.log(np.maximum(losses, 1e-6))
        return np.asarray(logs - np.median(logs[cohort.reference]), dtype=np.float64)
