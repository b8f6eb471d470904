"""A new global model is tried before it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..core.types import Server
from .batched import at_home, evaluating
from .layout import Layout

SAMPLES = 16  # inputs that a new model is tried on
VARIANCE = "running_var"  # arrays whose names end so, BatchNorm's, are never below 0


@dataclass(frozen=True, eq=False)
class Trial:
    """The architecture, and inputs to try a set of parameters on."""

    model: nn.Module
    layout: Layout
    inputs: Tensor

    @classmethod
    def of(cls, server: Server) -> Trial | None:
        """From what a server holds: its probe, or else its blank input; None where it has no model or neither."""
        inputs = server.probe if isinstance(server.probe, Tensor) else server.blank
        if server.model is None or inputs is None:
            return None
        return cls(server.model, Layout.of(server.model), inputs[:SAMPLES])

    def sound(self, params: Tensor) -> bool:
        """Whether the model with these parameters gives finite numbers."""
        state = self.layout.unflatten(params)
        with evaluating(self.model):
            out = functional_call(self.model, state, (at_home(self.inputs, self.model),))
        return bool(torch.isfinite(out).all()) if isinstance(out, Tensor) else True


@dataclass(frozen=True, eq=False)
class Examined:
    """A new model as it may be installed, what was below 0 of which variance, and why not to install it, or nothing."""

    params: Tensor
    negative: Mapping[str, float]
    fault: Literal["", "not_finite", "no_finite_output"]


def below_zero(names: Sequence[str], arrays: Sequence[Any]) -> dict[str, float]:
    """The lowest entry of each variance that has one below 0."""
    variances = [(k, a.reshape(-1)) for k, a in zip(names, arrays, strict=True) if k.endswith(VARIANCE)]
    return {name: float(a.min()) for name, a in variances if len(a) and a.min() < 0}


def examine(
    new: Tensor, names: Sequence[str], sizes: Sequence[int], last: Tensor | None = None, trial: Trial | None = None
) -> Examined:
    """Whether a new model, of arrays of these names and sizes, may take the place of the last one.

    Variances below 0 are set to 0. A model may not be installed that is not finite, or that on trial gives no finite
    output where the last one does.

    >>> found = examine(torch.tensor([1.0, -2.0, 3.0]), ["weight", "running_var"], [1, 2])
    >>> found.params.tolist(), found.negative, found.fault
    ([1.0, 0.0, 3.0], {'running_var': -2.0}, '')
    >>> examine(torch.tensor([torch.inf]), ["weight"], [1]).fault
    'not_finite'
    """
    parts = new.split(list(sizes))
    if not all(part.isfinite().all() for part in parts):
        return Examined(new, {}, "not_finite")
    if negative := below_zero(names, parts):
        new = torch.cat([p.clamp(min=0.0) if name in negative else p for name, p in zip(names, parts, strict=True)])
    silent = trial is not None and last is not None and not trial.sound(new) and trial.sound(last)
    return Examined(new, negative, "no_finite_output" if silent else "")
