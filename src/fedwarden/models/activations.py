"""The rectified units of any model, found while it runs: the inputs of ReLU and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .batched import at_home, evaluating

KINDS = "ReLU, ReLU6, LeakyReLU, PReLU, GELU and SiLU, as modules or as functions"
RECTIFIERS = frozenset({
    F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, F.relu6, F.leaky_relu, F.leaky_relu_,
    torch.prelu, Tensor.prelu, F.gelu, F.silu,
})  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """One call of a rectifier: its name, how many units a sample has there, and the axis on which samples lie.

    The axis is None where no sample reaches it.
    """

    name: str
    size: int
    axis: int | None


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


def listen(
    model: nn.Module, samples: Tensor, layers: Sequence[Layer], reduce: Callable[[Tensor], Tensor]
) -> tuple[list[Tensor], Any]:
    """What becomes of the pre-activations (N, n_l) of each layer that samples reach, in order, and the model's output.

    ``reduce`` is applied to each layer as the model runs on the N samples.
    """
    heard: list[Tensor | None] = []

    def hear(z: Tensor) -> None:
        axis = layers[len(heard)].axis if len(heard) < len(layers) else None
        if axis:
            z = z.movedim(axis, 0)
        heard.append(None if axis is None else reduce(z.reshape(len(samples), -1)))

    with Tap(hear):
        output = model(samples)
    if len(heard) != len(layers):
        raise ValueError(f"{len(layers)} layers of rectified units were found and {len(heard)} ran")
    return [found for found in heard if found is not None], output


def find_layers(model: nn.Module, probe: Tensor) -> tuple[Layer, ...]:
    """The layers of rectified units in the order in which they run.

    Two small passes tell the axis of the samples from the others: the one that grows with them.
    """
    samples = at_home(probe, model)
    calls = [_calls(model, samples[torch.arange(size) % len(samples)]) for size in (2, 3)]
    layers: list[Layer] = []
    for (name, two), (_, three) in zip(*calls, strict=True):
        axis = next((k for k, (a, b) in enumerate(zip(two, three, strict=True)) if a < b and 3 * a == 2 * b), None)
        number = sum(layer.axis is not None for layer in layers) + 1
        label = f"layer {number} ({name})" if any(c.isalpha() for c in name) else f"layer {number}"
        layers.append(Layer(label, two.numel() // 2, axis))
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
    with evaluating(model):
        bits, _ = listen(model, at_home(probe, model), layers, lambda z: z > 0)
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
