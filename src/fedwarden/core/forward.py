"""The models of a cohort's clients, run on samples of the server without leaving a trace in its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import vmap

from .layout import Layout
from .types import Cohort
from .updates import Updates

State = dict[str, Tensor]

BATCH_BYTES = 64 << 20  # weights and activations of the clients that are run at once


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode and without gradients; the training flag of every part is put back."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


def at_home(samples: Tensor, model: nn.Module) -> Tensor:
    """The samples on the model's device and, where they are not whole numbers such as tokens, in its precision."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return samples
    return samples.to(weight.device, weight.dtype if samples.is_floating_point() else None)


def batch_size(model: nn.Module, activations: int) -> int:
    """How many clients to run at once: as many as fit ``BATCH_BYTES``, or one where the model has convolutions.

    Stacked matrices are multiplied by one call for all clients, which pays for small models; stacked filters become
    grouped convolutions, which are slower than one client after another. ``activations`` are the entries of one pass.
    """
    if any(p.dim() > 2 for p in model.parameters()):
        return 1
    return max(1, BATCH_BYTES // (4 * (Layout.of(model).d + activations)))


def map_clients(look: Callable[[State], Tensor], model: nn.Module, cohort: Cohort, batch: int = 1) -> Tensor:
    """``look`` at the state of every client's model: (n, ...), NaN where a client's weights are not finite numbers.

        state_i = unflatten(params + x_i)

    With ``batch`` > 1 that many clients go through one call of ``look`` under ``torch.func.vmap``; a model that vmap
    cannot follow is run client by client.
    """
    layout = Layout.of(model)
    params = _params(layout, cohort)
    found = []
    for start in range(0, len(cohort), batch):
        rows = cohort.updates.select(range(start, min(start + batch, len(cohort))))
        flat = _weights(rows, params).to(_device(model))
        seen = _look(lambda row: look(layout.unflatten(row)), flat)
        finite = flat.sum(dim=1).isfinite()  # one pass; NaN and Inf survive a sum
        found.append(seen.where(finite.reshape(-1, *[1] * (seen.dim() - 1)), torch.nan))
    return torch.cat(found)


def global_state(model: nn.Module, cohort: Cohort) -> State:
    """The state of the round's global model, in the names, shapes and dtypes of the server's model."""
    layout = Layout.of(model)
    return layout.unflatten(_params(layout, cohort).to(_device(model)))


def _params(layout: Layout, cohort: Cohort) -> Tensor:
    if cohort.params is None:
        raise ValueError("a client's model is params + update, and this cohort has no params; set Cohort.params")
    if cohort.updates.d != layout.d or cohort.params.numel() != layout.d:
        raise ValueError(
            f"updates, params and the server's model must agree in size; got updates of d={cohort.updates.d}, "
            f"{cohort.params.numel()} params and a model of {layout.d}"
        )
    return cohort.params.detach().reshape(-1)


def _device(model: nn.Module) -> torch.device:
    some: Tensor = next(iter(model.state_dict().values()))
    return some.device


def _weights(updates: Updates, params: Tensor) -> Tensor:
    """Whole models, (n, d): every row is read once."""
    flat = torch.empty(len(updates), updates.d, dtype=updates.dtype, device=updates.device)
    base = params.to(updates.device, updates.dtype)
    for start, stop, block in updates.blocks():
        torch.add(block, base[start:stop], out=flat[:, start:stop])
    return flat


def _look(look: Callable[[Tensor], Tensor], flat: Tensor) -> Tensor:
    if len(flat) > 1:
        try:
            return vmap(look)(flat)
        except RuntimeError:
            pass  # what is wrong with the model, if anything, is raised below
    return torch.stack([look(row) for row in flat])
