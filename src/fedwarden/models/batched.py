"""The models of a round, run on samples of the server without leaving a trace in its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..core.types import Cohort
from .layout import Layout

T = TypeVar("T")
Look = Callable[[], list[Tensor]]
Rows = Sequence[Sequence[Tensor]]

COUNTER = "num_batches_tracked"  # of BatchNorm, which does not read it in evaluation
GROUP = 8  # models that run one after another before what was seen of them is used


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
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


def each_model(look: Look, model: nn.Module, cohort: Cohort) -> Iterator[list[Tensor]]:
    """``look`` while the model holds the round's global weights, then each client's, in groups of g models.

        weights_i = params + x_i

    Whole numbers among them stay those of the global model: nothing trains them, and an index that points nowhere would
    end the run.

    ``look`` runs the model and returns new tensors; a group has each of them as (g, ...). The first group is the global
    model alone.
    """
    layout, home = Layout.of(model), next(chain(model.parameters(), model.buffers())).device
    base, shift = offset(layout, cohort, home)
    slot = Slot(layout, home)
    slot.keep(_whole_numbers(layout, base if shift is None else base + shift, home))
    yield _in_turn(look, model, slot, [[base]], shift)
    for start in range(0, len(cohort), GROUP):
        group = range(start, min(start + GROUP, len(cohort)))
        yield _in_turn(look, model, slot, [cohort.updates.sent(i) for i in group], shift)


class Slot:
    """Room for the weights of one model: a flat vector, and the model's state over it."""

    def __init__(self, layout: Layout, home: torch.device) -> None:
        self.flat = torch.empty(layout.d, device=home)
        self.state = {k: v for k, v in layout.unflatten(self.flat).items() if not k.endswith(COUNTER)}
        parts = dict(zip(layout.names, self.flat.split(list(layout.sizes)), strict=True))
        floats = {k: v for k, v in self.state.items() if v.is_floating_point()}
        self.casts = [(v, parts[k].view_as(v)) for k, v in floats.items() if v.dtype != self.flat.dtype]

    def keep(self, whole: dict[str, Tensor]) -> None:
        """Put the whole numbers in their places, for all models to come."""
        for name, value in whole.items():
            self.state[name].copy_(value)

    def fill(self, row: Sequence[Tensor], shift: Tensor | None) -> None:
        start = 0
        for piece in row:
            self.flat[start : start + piece.numel()].copy_(piece)
            start += piece.numel()
        if shift is not None:
            self.flat.add_(shift)
        for target, part in self.casts:
            target.copy_(part)


def _whole_numbers(layout: Layout, params: Tensor, home: torch.device) -> dict[str, Tensor]:
    """The entries of a model that are no floating numbers, but for counters."""
    names = [
        n for n, t in zip(layout.names, layout.dtypes, strict=True) if not (t.is_floating_point or n.endswith(COUNTER))
    ]
    state = layout.unflatten(params.to(home)) if names else {}
    return {name: state[name] for name in names}


def offset(layout: Layout, cohort: Cohort, home: torch.device) -> tuple[Tensor, Tensor | None]:
    """What the global model would have sent, and what makes weights of what was sent; None where that is nothing."""
    if cohort.params is None:
        raise ValueError("a client's model is params + update, and this cohort has no params; set Cohort.params")
    if cohort.updates.d != layout.d or cohort.params.numel() != layout.d:
        raise ValueError(
            f"updates, params and the server's model must agree in size; got updates of d={cohort.updates.d}, "
            f"{cohort.params.numel()} params and a model of {layout.d}"
        )
    params, base = cohort.params.detach().reshape(-1), cohort.updates.base
    if base is None:
        return torch.zeros_like(params), params.to(home, torch.float32)
    same = base.data_ptr() == params.data_ptr() or torch.equal(base, params.to(base))
    return base, None if same else (params.to(base) - base).to(home)


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


def _in_turn(look: Look, model: nn.Module, slot: Slot, rows: Rows, shift: Tensor | None) -> list[Tensor]:
    """One loan for all: the weights change in place, as handing them over costs as much as running a small model."""

    def task() -> list[list[Tensor]]:
        found = []
        for row in rows:
            slot.fill(row, shift)
            found.append(look())
        return found

    return [torch.stack(column) for column in zip(*_lend(model, slot.state, task), strict=True)]
