"""Low-rank adapters in the simulator: clients of smaller ranks, in flat vectors of the model's size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import ConfigError
from ..core.types import Reported
from ..guard.adapters import Adapters, Folded, unmeasured
from ..models.layout import Layout
from .scenario import Scenario


@dataclass(frozen=True, eq=False)
class Sent:
    """What one client sends, at its own rank."""

    client_id: str
    layers: Sequence[NDArray[Any]]
    count: float


@dataclass(frozen=True, eq=False)
class LowRank:
    """The adapters of a scenario's model. A client of a smaller rank trains the model's factors, padded with zeros.

    The padding has no gradient, so this is training at the smaller rank, with the model's scale.
    """

    adapters: Adapters
    layout: Layout
    ranks: Mapping[str, int]
    measured: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, scenario: Scenario, layout: Layout, measured: Sequence[tuple[int, int]]) -> LowRank | None:
        """The adapters of the scenario's guard, if any; clients' own ranks are checked."""
        adapters = Adapters.of(scenario.guard.adapters)
        own = {scenario.client_named(c, "train.own"): o.rank for c, o in scenario.train.own.items() if o.rank}
        if adapters is None:
            if own:
                raise ConfigError(f"train.own: a rank, as that of client {min(own)!r}, needs guard.adapters = 'lora'")
            return None
        found = {layout.shapes[i][0] for i, _ in adapters.pairs(layout.names)}
        if wrong := next((rank for rank in (adapters.rank, *own.values()) if rank and rank > min(found)), None):
            raise ConfigError(f"the model's adapters have rank {min(found)}; got {wrong}: raise model.rank")
        if adapters.rank is not None and found != {adapters.rank}:
            raise ConfigError(f"guard.adapters: rank {adapters.rank} is not the model's {max(found)}: set model.rank")
        adapters.shared(layout.names, unmeasured(layout.names, layout.shapes, measured))  # or it is refused
        return cls(replace(adapters, alphas={**adapters.alphas, **own}), layout, own, measured)

    def sent(self, params: Tensor, client: str) -> Tensor:
        """The model that a client is sent."""
        if client not in self.ranks:
            return params
        model = self._layers(params)
        many = len(self.adapters.pairs(self.layout.names))
        own = self.adapters.brought(self.layout.names, model, [self.ranks[client]] * many, client)
        for whole, part in zip(model, own, strict=True):
            whole[...] = 0
            whole[tuple(slice(0, size) for size in part.shape)] = part
        return self._flat(model).to(params)

    def fold(
        self,
        round: int,
        clients: Sequence[str],
        models: Tensor,
        counts: Sequence[float],
        params: Tensor,
        told: Reported,
    ) -> Folded:
        """The cohort of these clients' models."""
        letters = [Sent(c, self._layers(m, c), n) for c, m, n in zip(clients, models, counts, strict=True)]
        return self.adapters.fold(round, letters, self.layout.names, self._layers(params), self.measured, told)

    def update(self, folded: Folded, update: Tensor, params: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The change of the model by an update in the coordinates of a cohort, and its metrics."""
        model, metrics = folded.unfold(update)
        return self._flat(model).to(params) - params, metrics

    def _flat(self, model: Sequence[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.concatenate([np.asarray(a, np.float32).reshape(-1) for a in model]))

    def _layers(self, flat: Tensor, client: str | None = None) -> list[NDArray[Any]]:
        parts = flat.detach().cpu().split(list(self.layout.sizes))
        layers = [part.numpy().reshape(shape).copy() for part, shape in zip(parts, self.layout.shapes, strict=True)]
        if client is not None and (rank := self.ranks.get(client)):
            apart = unmeasured(self.layout.names, self.layout.shapes, self.measured)
            for i, j in self.adapters.shared(self.layout.names, apart):
                layers[i], layers[j] = layers[i][:rank], layers[j][:, :rank]
        return layers
