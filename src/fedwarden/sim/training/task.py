"""One group of clients to train: what a pool hands to a worker, and how it is carried out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .engine import Engine


@dataclass(frozen=True)
class Assignment:
    """One group of clients, the rows of the result that are theirs, and the data of those whose data changed."""

    round: int
    client_ids: list[str]
    slots: list[int]
    changed: dict[str, list[int]] = field(default_factory=dict)


def run_task(engine: Engine, params: Tensor, task: Assignment, out: Tensor) -> None:
    """Train one group and write its models into its rows of the result."""
    models = torch.empty(len(task.slots), engine.layout.d, device=engine.device)
    changed = {client: np.array(rows, dtype=np.int64) for client, rows in task.changed.items()}
    engine.train(params.to(engine.device), task.round, task.client_ids, models, changed)
    for slot, model in zip(task.slots, models, strict=True):
        out[slot].copy_(model)
