"""What one participant natively sees in a round, and what it can make of it.

It gets the global parameters, knows the model it sent itself and its own share of the average, and holds a few samples
of its own. From these come the model of the others, that model's representations, and the step it took since the round
before. Nothing else goes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.func import functional_call

from ..models.batched import at_home, evaluating
from ..models.layout import Layout

Params: TypeAlias = Tensor | Mapping[str, Tensor] | Sequence[Any]
"""A model: a flat vector, a state dict, or a list of arrays in the order of the state dict."""


@dataclass(frozen=True, eq=False)
class Sighting:
    """What is known after one round; gradients and what precedes the first round are None.

    ``target`` is the model of the others (d,), ``gradient`` its step since the last round, ``layers`` its
    representations of the probe by layer (N, units), ``logits`` its outputs (N, classes).
    """

    round: int
    target: Tensor
    gradient: Tensor | None = None
    layers: Mapping[str, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None


def remove_own(params: Tensor, own: Tensor, share: float) -> Tensor:
    """The average of the others' models: the global model without one's own part in it.

        theta = (G - p W) / (1 - p) = G + p / (1 - p) (G - W);   (n G - W) / (n - 1) for equal weights, p = 1 / n

    Brunner and Montuoro, arXiv 2409.13875 (equal weights); p = own examples / all examples gives the sample-weighted
    form. In float64: in float32 n G - W would lose digits.

    >>> remove_own(torch.tensor([2.0, 4.0]), torch.tensor([1.0, 7.0]), share=1 / 2).tolist()
    [3.0, 1.0]
    """
    if not 0 <= share < 1:
        raise ValueError(f"the own share of the average lies in [0, 1); got {share}")
    if params.shape != own.shape:
        raise ValueError(f"the global and the own model have one size; got {tuple(params.shape)}, {tuple(own.shape)}")
    whole = params.double()
    return (whole + share / (1 - share) * (whole - own.double())).to(params.dtype)


def representations(
    model: nn.Module, state: Mapping[str, Tensor], probe: Tensor, only: Sequence[str] | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The outputs of a model with the given state, and those of its leaf modules by name, each (N, units).

    The model keeps its own parameters, buffers and modes. A layer whose output is the memory of an earlier one (a
    reshape, dropout outside of training, an activation in place) repeats it and is left out; a module that is used
    twice appears as ``name`` and ``name#2``. ``only`` names the modules to read instead of all leaves.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 2))
    >>> logits, layers = representations(net, net.state_dict(), torch.ones(5, 1, 2))
    >>> {name: tuple(x.shape) for name, x in layers.items()}
    {'1': (5, 3), '2': (5, 3), '4': (5, 2)}
    """
    probe, modules = at_home(probe, model), dict(model.named_modules())
    if only is None:
        only = [name for name, module in modules.items() if not any(True for _ in module.children())]
    if unknown := [name for name in only if name not in modules]:
        raise ValueError(f"the model has no module {unknown[0]!r}; it has {', '.join(filter(None, modules))}")
    found: dict[str, Tensor] = {}
    seen = {probe.data_ptr()}

    def keep(name: str, output: object) -> None:
        value = output[0] if isinstance(output, tuple) else output
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.data_ptr() in seen:
            return
        if value.ndim < 1 or len(value) != len(probe):
            raise ValueError(
                f"layer {name!r} gives shape {tuple(value.shape)} for {len(probe)} samples; samples come first: "
                "name the layers to read"
            )
        seen.add(value.data_ptr())
        uses = 1 + sum(key == name or key.startswith(f"{name}#") for key in found)
        found[name if uses == 1 else f"{name}#{uses}"] = value.reshape(len(value), -1)

    hooks = [modules[name].register_forward_hook(lambda _, __, output, name=name: keep(name, output)) for name in only]
    try:
        with evaluating(model):
            outputs = functional_call(model, dict(state), (probe,))
    finally:
        for hook in hooks:
            hook.remove()
    return outputs, found


@dataclass(frozen=True, eq=False)
class Information:
    """Collects what a participant sees, round by round; a view holds all that is remembered.

    ``share`` is the own part of the average, 0 to leave it in. Weights are compared from the second view on,
    gradients from the third. A view takes 2 d numbers and the representations of the probe. The model is not ``run`` on
    it where only weights and gradients are read.
    """

    model: nn.Module
    probe: Tensor
    share: float = 0.0
    layers: Sequence[str] | None = None
    run: bool = True

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.model)

    def step(
        self, past: Sighting | None, round: int, params: Params, own: Params | None = None, share: float | None = None
    ) -> Sighting:
        """The view after a round from the global model at its end and the model one sent in it, None if none.

        ``share`` is the own part of this round's average, where it is not always the same.
        """
        if past is not None and round <= past.round:
            raise ValueError(f"rounds come in order; got round {round} after round {past.round}")
        target = self.flat(params)
        if own is not None and self.share:  # a share of 0 leaves one's own part in
            target = remove_own(target, self.flat(own), self.share if share is None else share)
        return self.look(round, target, None if past is None else target - past.target)

    def look(self, round: int, target: Tensor, gradient: Tensor | None) -> Sighting:
        """The view of a target model: its representations and outputs are those on the probe."""
        if not self.run:
            return Sighting(round, target, gradient)
        logits, layers = representations(self.model, self.layout.unflatten(target), self.probe, self.layers)
        return Sighting(round, target, gradient, layers, logits)

    def parameters(self, flat: Tensor) -> dict[str, Tensor]:
        """The parts of a flat model that are trained, by name; buffers are left out."""
        names = [name for name, trained in zip(self.layout.names, self.layout.is_parameter, strict=True) if trained]
        return {name: flat[start:stop] for name, (start, stop) in zip(names, self.layout.measured, strict=True)}

    def flat(self, params: Params) -> Tensor:
        """A model as one float32 vector where the audited model is."""
        layout, device = self.layout, next(self.model.parameters()).device
        if isinstance(params, Mapping):
            if missing := [name for name in layout.names if name not in params]:
                raise ValueError(f"the model has {missing[0]!r}; the state dict has {', '.join(params) or 'nothing'}")
            return layout.flatten(params).to(device)
        parts = [params] if isinstance(params, Tensor | np.ndarray) else params
        flat = torch.cat([_vector(part) for part in parts])
        if len(flat) != layout.d:
            raise ValueError(f"the model has {layout.d} parameters and buffers; got {len(flat)} numbers")
        return flat.to(device)


def _vector(part: Tensor | ArrayLike) -> Tensor:
    if isinstance(part, Tensor):
        return part.detach().reshape(-1).to(torch.float32)
    return torch.from_numpy(np.array(part, dtype=np.float32).reshape(-1))
