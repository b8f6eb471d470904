"""How good the model is and how well the guard did; only the simulator may ask the second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.types import RoundRecord


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor, batch: int = 512) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of a model in evaluation mode."""
    model.eval()
    right, loss = 0, 0.0
    for a in range(0, len(y), batch):
        logits, labels = model(x[a : a + batch]), y[a : a + batch]
        right += int((logits.argmax(dim=1) == labels).sum())
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    return right / len(y), loss / len(y)


def rounds_to(values: Mapping[int, float], target: float) -> int | None:
    """The first round whose value reaches the target.

    >>> rounds_to({1: 0.5, 2: 0.9, 3: 0.8}, 0.9), rounds_to({1: 0.5}, 0.9)
    (2, None)
    """
    return next((t for t, value in sorted(values.items()) if value >= target), None)


@dataclass(frozen=True)
class Detection:
    """What became of the attackers and of the honest clients over a run."""

    attackers: tuple[str, ...]
    caught: tuple[str, ...]
    wronged: tuple[str, ...]
    first_excluded: dict[str, int]

    @property
    def recall(self) -> float:
        return len(self.caught) / len(self.attackers) if self.attackers else 1.0

    @property
    def precision(self) -> float:
        found = len(self.caught) + len(self.wronged)
        return len(self.caught) / found if found else 1.0


def detection(records: Sequence[RoundRecord], attackers: Sequence[str]) -> Detection:
    """Who was ever left out by a verdict, compared with the truth.

    A rejected reply is not a verdict, nor is the weight 0 of an aggregator that picks a few of many.
    """
    first: dict[str, int] = {}
    for record in records:
        judged = zip(record.client_ids, record.weights, record.flagged, strict=True)
        for client in (*(c for c, weight, flagged in judged if flagged and weight == 0), *record.excluded):
            first.setdefault(client, record.round)
    bad = set(attackers)
    return Detection(
        tuple(attackers), tuple(c for c in first if c in bad), tuple(c for c in first if c not in bad), first
    )
