"""The server that the laws lend to a component that needs one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from ..core.errors import ConfigError
from ..core.types import Server
from .law import CannotTell

PARAMETERS = 50  # of the model below


def of_size(d: int) -> Server:
    """A server with a linear model of d parameters, whose own training moves every one of them by 1."""
    return Server(nn.Linear(d - 1, 1), root=lambda params, round: torch.ones(d, dtype=torch.float64))


def with_model() -> Server:
    """A server with a small model, labelled samples, and training of its own."""
    rng = np.random.default_rng(2)
    probe, labels = torch.tensor(rng.normal(size=(40, 3)), dtype=torch.float32), torch.tensor(rng.integers(2, size=40))
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    return Server(model, probe, labels, of_size(PARAMETERS).root, torch.zeros(1, 3))


def equipped(kind: str, component: Any, server: Server) -> Any:
    """The component with what it needs of the server; where the server does not have it, no law can tell anything."""
    try:
        return component.equip(server)
    except ConfigError as error:
        raise CannotTell(f"the laws cannot lend this {kind} what it needs: {error}") from error
