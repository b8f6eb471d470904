"""Low-rank adapters: a large model stays as it is, and a small correction of some layers is trained and sent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Adapted(nn.Module):
    """A linear layer with a low-rank correction.

        h = W x + b + (alpha / r) B A dropout(x),   A (r, inputs) random, B (outputs, r) zero at first

    Hu et al. (2022), section 4.1. Differs from the paper: A is drawn uniformly, as torch draws a linear layer's weights
    and as the library peft does.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.layer = layer
        self.a = nn.Parameter(torch.empty(rank, layer.in_features))
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.dropout = nn.Dropout(dropout)
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        correction = F.linear(F.linear(self.dropout(x), self.a), self.b)
        return self.layer(x) + self.scale * correction  # type: ignore[no-any-return]


def freeze(model: nn.Module) -> None:
    """Make every parameter a constant, which moves with the model and is in no state of it."""
    for module in model.modules():
        held = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        for name, value in held.items():
            delattr(module, name)
            module.register_buffer(name, value.detach(), persistent=False)


def adapt(model: nn.Module, layers: Sequence[str], rank: int, alpha: float, dropout: float) -> None:
    """Freeze a model and give its linear layers of these names (the last part of a path) an adapter each.

    >>> model = nn.ModuleDict({"query": nn.Linear(4, 4), "key": nn.Linear(4, 4)})
    >>> adapt(model, ["query"], rank=2, alpha=4.0, dropout=0.1)
    >>> {name: tuple(value.shape) for name, value in model.state_dict().items()}
    {'query.a': (2, 4), 'query.b': (4, 2)}
    """
    if rank < 1 or not 0 <= dropout < 1:
        raise ValueError(f"an adapter has a rank of at least 1 and a dropout in [0, 1); got {rank} and {dropout}")
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if name in layers and isinstance(child, nn.Linear)
    ]
    if not found:
        known = sorted({n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, nn.Linear)})
        raise ValueError(f"no linear layer is named {' or '.join(layers)}; it has {', '.join(known)}")
    freeze(model)
    for parent, name, layer in found:
        setattr(parent, name, Adapted(layer, rank, alpha, dropout))
