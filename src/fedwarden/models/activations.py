"""The rectified units of any model, found while it runs: the inputs of ReLU and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from .batched import at_home, evaluating

KINDS = "ReLU, ReLU6, LeakyReLU, PReLU, GELU and SiLU, as modules or as functions"
RECTIFIERS = frozenset({
    F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, F.relu6, F.leaky_relu, F.leaky_relu_,
    torch.prelu, Tensor.prelu, F.gelu, F.silu,
})  # fmt: skip


MODULES = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.GELU, nn.SiLU)


@dataclass(frozen=True)
class Layer:
    """One call of a rectifier: its name, how many units a sample has there, and the axis on which samples lie.

    The axis is None where no sample reaches it. ``module`` is the rectifier's own, where it is not a function.
    """

    name: str
    size: int
    axis: int | None
    module: nn.Module | None


class Tap(TorchFunctionMode):
    """Shows the input of every rectifier before it runs, whether a module or a function calls it.

    While a mode is active, torch's transformer layers do not take the fused path that has no activation to see.
    """

    def __init__(self, see: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.see = see

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func in RECTIFIERS or (func is F.hardtanh and named.get("min_val") == 0):  # nn.ReLU6 is a hardtanh
            self.see(args[0] if args else named["input"])
        return func(*args, **named)


class Listener:
    """Runs a model on N samples and reduces the pre-activations (N, n_l) of each layer as they come.

    Where modules call all rectifiers, hooks on these hear the same as a :class:`Tap` at a fraction of the cost; they
    are gone when the context ends.
    """

    def __init__(
        self, model: nn.Module, samples: Tensor, layers: Sequence[Layer], reduce: Callable[[Tensor], Tensor]
    ) -> None:
        self.model, self.samples, self.layers, self.reduce = model, samples, layers, reduce
        self.n = len(samples)
        fused = any(isinstance(module, nn.TransformerEncoderLayer) for module in model.modules())
        self.hooked = not fused and all(layer.module for layer in layers)
        self.handles: list[RemovableHandle] = []
        self.heard: list[Tensor | None] = []

    def __enter__(self) -> Listener:
        for module in {layer.module for layer in self.layers if layer.module and self.hooked}:
            self.handles.append(module.register_forward_pre_hook(self._hook, with_kwargs=True))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self.handles:
            handle.remove()

    def run(self) -> tuple[list[Tensor], Any]:
        """What became of the layers that samples reach, in order, and the model's output."""
        self.heard = []
        with nullcontext() if self.hooked else Tap(self._hear):
            output = self.model(self.samples)
        if len(self.heard) != len(self.layers):
            raise ValueError(f"{len(self.layers)} layers of rectified units were found and {len(self.heard)} ran")
        return [heard for heard in self.heard if heard is not None], output

    def _hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._hear(args[0] if args else kwargs["input"])

    def _hear(self, z: Tensor) -> None:
        axis = self.layers[len(self.heard)].axis if len(self.heard) < len(self.layers) else None
        if axis:
            z = z.movedim(axis, 0)
        self.heard.append(None if axis is None else self.reduce(z.reshape(self.n, -1)))


def find_layers(model: nn.Module, probe: Tensor) -> tuple[Layer, ...]:
    """The layers of rectified units in the order in which they run.

    Two small passes tell the axis of the samples from the others: the one that grows with them.
    """
    samples = at_home(probe, model)
    calls = [_calls(model, samples[torch.arange(size) % len(samples)]) for size in (2, 3)]
    modules = dict(model.named_modules())
    layers: list[Layer] = []
    for (name, two), (_, three) in zip(*calls, strict=True):
        axis = next((k for k, (a, b) in enumerate(zip(two, three, strict=True)) if a < b and 3 * a == 2 * b), None)
        number = sum(layer.axis is not None for layer in layers) + 1
        label = f"layer {number} ({name})" if any(c.isalpha() for c in name) else f"layer {number}"
        module = modules[name] if type(modules[name]) in MODULES else None
        layers.append(Layer(label, two.numel() // 2, axis, module))
    if all(layer.axis is None for layer in layers):
        raise ValueError(f"no rectified unit found in {type(model).__name__}; looked for {KINDS}")
    return tuple(layers)


def patterns(model: nn.Module, probe: Tensor) -> dict[str, Tensor]:
    """The activation bits of every layer of rectified units, (N, n_l) of bool, by layer.

        a_l(x) = 1[z_l(x) > 0],   z_l the input of the rectifier; every channel and position is a unit

    arXiv 2605.22266. GELU and SiLU count by the sign of their input too.

    >>> model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU())
    >>> _ = model[0].weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    >>> patterns(model, torch.tensor([[3.0], [-2.0], [0.0]]))["layer 1"].int().tolist()
    [[1, 0], [0, 1], [0, 0]]
    """
    layers = find_layers(model, probe)
    with evaluating(model), Listener(model, at_home(probe, model), layers, lambda z: z > 0) as listener:
        bits, _ = listener.run()
    names = [layer.name for layer in layers if layer.axis is not None]
    return dict(zip(names, bits, strict=True))


def _calls(model: nn.Module, samples: Tensor) -> list[tuple[str, torch.Size]]:
    """The innermost module that each rectifier runs in, and the shape of its input."""
    running, seen = [""], list[tuple[str, torch.Size]]()

    def leave(*_: object) -> None:
        running.pop()

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: running.append(name)))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        with evaluating(model), Tap(lambda z: seen.append((running[-1], z.shape))):
            model(samples)
    finally:
        for handle in handles:
            handle.remove()
    return seen
