"""A new global model is tried before it is installed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..core.notes import Note
from ..core.types import Server
from .batched import at_home, evaluating
from .layout import Layout

SAMPLES = 16  # inputs that a new model is tried on
VARIANCES = "running_var"  # BatchNorm's, which are never below 0


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

    def fault(self, params: Tensor, last: Tensor) -> Note | None:
        """Why the model with these parameters is not to be installed in place of the last one, or None."""
        if self.sound(params) or not self.sound(last):
            return None
        return Note.of("no_finite_output")

    def floored(self, params: Tensor, update: Tensor) -> Tensor:
        """The update with no variance of the new model below 0."""
        for name, start, stop in self.layout.ranges():
            if name.endswith(VARIANCES) and bool((params[start:stop] + update[start:stop] < 0).any()):
                update = update.clone()
                update[start:stop] = (params[start:stop] + update[start:stop]).clamp(min=0.0) - params[start:stop]
        return update
