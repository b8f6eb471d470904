"""Updates judged by one that the server trained on its own data (FLTrust)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ConfigError
from ..core.registry import register
from ..core.stats import Weights
from ..core.types import Aggregate, Cohort, Server, State
from ..updates.updates import Updates

SHORTEST = 1e-30  # of the root update's length: what would be stretched more leaves the range of float32


def fltrust(updates: Updates, root: Tensor) -> Aggregate:
    """The mean of the updates brought to the length of the server's own, each trusted as far as it points its way.

        u = sum_i T_i (||r|| / ||x_i||) x_i / sum_i T_i,   T_i = max(0, cos(x_i, r))

    Cao et al., FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping (2021), equations 2 to 4. Where no
    update points the server's way, the result is zero and the model stays. Differs from the paper: counters and running
    statistics are not brought to another length, which could make a variance negative, and an update of less than
    1e-30 of the server's length has no direction to trust.

    >>> rows = Updates.of(np.array([[2.0, 0.0], [0.0, -3.0], [-1.0, 0.0]]))
    >>> fltrust(rows, torch.tensor([1.0, 0.0])).update.tolist()
    [1.0, 0.0]
    """
    if root.numel() != updates.d:
        raise ValueError(f"fltrust needs a root update of d={updates.d} entries; got {root.numel()}")
    lengths = np.maximum(updates.lengths(), np.finfo(np.float64).tiny)
    length = sum(float(root[a:b].double().square().sum()) for a, b in updates.measured) ** 0.5
    if not length > 0 or not np.isfinite(length):
        raise ValueError(f"fltrust needs a root update of finite length above 0; got {length}")
    trust = np.where(lengths > SHORTEST * length, np.maximum(updates.dots(root) / (lengths * length), 0.0), 0.0)
    keep = np.flatnonzero(trust)
    kept, share = updates.select(keep), torch.as_tensor(trust[keep] / trust.sum())
    plain, scaled = (w.to(kept.device, kept.dtype) for w in (share, share * length / torch.as_tensor(lengths[keep])))
    return Aggregate(kept.columns(lambda block: scaled @ block, unmeasured=lambda block: plain @ block))


@register(
    "aggregator",
    "fltrust",
    exempt=dict.fromkeys(("translation", "near-agreement"), "angles are taken from zero")
    | dict.fromkeys(("scaling", "identical"), "the length is that of the root update"),
)
@dataclass(frozen=True)
class FLTrust:
    """Updates weighted by their cosine to the server's own update, ``root``: a vector, or (params, round) -> vector."""

    root: Tensor | Callable[[Tensor, int], Tensor] | None = field(default=None, compare=False)

    def equip(self, server: Server) -> FLTrust:
        if self.root is None and server.root is None:
            raise ConfigError("fltrust needs a server with data of its own: in a scenario, set data.reserve")
        return self if self.root is not None else replace(self, root=server.root)

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        if self.root is None:
            raise ValueError("fltrust needs the server's own update: give root, or a server that trains on its data")
        root = self.root
        if callable(root):
            if cohort.params is None:
                raise ValueError("fltrust needs the cohort's params to train the server's own update from")
            root = root(cohort.params, cohort.round)
        root = torch.as_tensor(root)
        return state, fltrust(cohort.updates.select(np.flatnonzero(weights > 0)), root.reshape(-1))
