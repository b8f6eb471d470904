"""The models of a cohort's clients, run on samples of the server without leaving a trace in its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from .layout import Layout
from .types import Cohort
from .updates import Updates

T = TypeVar("T")

READ_BYTES = 4 << 20  # updates read in one go, near the size of a second-level cache
BATCH_BYTES = 256 << 20  # weights and activations of the clients that a GPU runs at once


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


def with_global(look: Callable[[], T], model: nn.Module, cohort: Cohort) -> T:
    """``look`` while the model holds the round's global parameters."""
    layout = Layout.of(model)
    return _lend(model, layout.unflatten(_params(layout, cohort).to(_device(model))), look)


def map_clients(look: Callable[[], Tensor], model: nn.Module, cohort: Cohort, activations: int) -> Tensor:
    """``look`` while the model holds each client's weights in turn: (n, ...), NaN where these are not finite.

        weights_i = params + x_i

    ``look`` runs the model, which :func:`still` has made quiet, and returns a new tensor. On a GPU as many clients as
    fit in ``BATCH_BYTES`` go through one call under ``torch.func.vmap``, unless the model has convolutions, which
    stacked are slower than one after another; a CPU gains nothing from it. ``activations`` are the entries of a pass.
    """
    layout, device = Layout.of(model), _device(model)
    params = _params(layout, cohort).to(cohort.updates.device, cohort.updates.dtype)
    fit = BATCH_BYTES // (4 * (layout.d + activations))
    stacked = device.type == "cuda" and fit > 1 and all(p.dim() <= 2 for p in model.parameters())
    size = fit if stacked else max(1, READ_BYTES // (4 * layout.d))
    found: list[Tensor] = []
    for start in range(0, len(cohort), size):
        flat = _weights(cohort.updates.select(range(start, min(start + size, len(cohort)))), params).to(device)
        found += _together(look, model, layout, flat) if stacked else _in_turn(look, model, layout, flat)
    return torch.stack(found)


class _Lent(nn.Module):
    """A place to run a task while the model inside holds other weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, task: Callable[[], T]) -> T:
        return task()


def _lend(model: nn.Module, state: dict[str, Tensor], task: Callable[[], T]) -> T:
    lent = {f"model.{name}": value for name, value in state.items()}
    return functional_call(_Lent(model), lent, (task,), tie_weights=False)  # type: ignore[no-any-return]


def _in_turn(look: Callable[[], Tensor], model: nn.Module, layout: Layout, flat: Tensor) -> list[Tensor]:
    """One loan for all: the weights change in place, as handing them over costs as much as running a small model."""
    held = flat[0].clone()
    state = layout.unflatten(held)
    sources = zip(layout.names, held.split(list(layout.sizes)), strict=True)
    casts = [(state[name], part) for name, part in sources if state[name].dtype != held.dtype]

    def task() -> list[Tensor]:
        found = []
        for row in flat:
            held.copy_(row)
            for target, part in casts:
                target.copy_((part if target.is_floating_point() else part.round()).view_as(target))
            found.append(_sound(look(), held))
        return found

    return _lend(model, state, task)


def _together(look: Callable[[], Tensor], model: nn.Module, layout: Layout, flat: Tensor) -> list[Tensor]:
    def one(row: Tensor) -> Tensor:
        return _sound(_lend(model, layout.unflatten(row), look), row)

    try:
        return list(vmap(one)(flat))
    except RuntimeError:  # vmap cannot follow every model; what else is wrong is raised again
        return _in_turn(look, model, layout, flat)


def _sound(seen: Tensor, weights: Tensor) -> Tensor:
    """NaN instead of what was seen of weights that are not finite, which their sum tells in one pass."""
    return seen.where(weights.sum().isfinite(), torch.nan)


def _weights(updates: Updates, params: Tensor) -> Tensor:
    """Whole models, (n, d): every row is read once."""
    flat = torch.empty(len(updates), updates.d, dtype=updates.dtype, device=updates.device)
    for start, stop, block in updates.blocks():
        torch.add(block, params[start:stop], out=flat[:, start:stop])
    return flat


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
