"""Models, built for an input shape and a number of classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import ConfigError
from ...core.registry import check_options, lookup, parameters, register, required
from ...core.seeds import seed_of
from ...core.words import listed
from ..training.limits import check_memory

Shape = tuple[int, ...]
COPIES = 4


def build_model(name: str, options: Mapping[str, object], shape: Sequence[int], classes: int, seed: int) -> nn.Module:
    """A registered model with weights drawn from the seed; torch's own generator is left as it was.

    One of the user's own, ``module:Net``, is told ``shape`` and ``classes`` where it has arguments of these names.
    """
    factory = lookup("model", name)
    return draw_model(factory, name, options, shape, classes, seed)


def draw_model(
    factory: Callable[..., object],
    name: str,
    options: Mapping[str, object],
    shape: Sequence[int],
    classes: int,
    seed: int,
) -> nn.Module:
    """What a factory makes of a shape and a number of classes, with weights drawn from the seed."""
    check_options("model", name, factory, options, set(parameters(factory)) - {"shape", "classes"})
    if factory.__module__ == __name__:  # another may load files, or need real tensors
        _check_size(name, factory, options, tuple(shape), classes)
    given: dict[str, object] = {"shape": tuple(shape), "classes": classes}
    told = list(given.values()) if ":" not in name else []
    named = {key: given[key] for key in given if not told and key in parameters(factory)}
    if not told and (missing := [key for key in required(factory) if key not in {**named, **options}]):
        raise ConfigError(
            f"model {name!r} needs {listed(missing)}: give a value in [model]; only arguments called shape and classes "
            "are told"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "model"))
        try:
            made = factory(*told, **named, **options)
        except (TypeError, ValueError, IndexError, RuntimeError) as error:
            raise ConfigError(f"model {name!r}: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(made, nn.Module):
        raise ConfigError(f"model {name!r}: expected a torch.nn.Module; got {type(made).__name__}")
    return made


def _check_size(
    name: str, factory: Callable[..., Any], options: Mapping[str, object], shape: Shape, classes: int
) -> None:
    """Refuse a model that does not fit into memory, before it is built."""
    try:
        with torch.device("meta"):
            d = sum(p.numel() for p in factory(shape, classes, **options).parameters())
    except Exception:  # options that building it will refuse, in words
        return
    what = f"{COPIES} copies of model {name!r} with its {d:,} parameters (in use, as sent, its gradient, the update)"
    check_memory(4 * COPIES * d, what, f"make it smaller, as by model.{next(iter(options), 'name')}")


@register("model", "mlp")
def mlp(shape: Shape, classes: int, hidden: Sequence[int] = (128,)) -> nn.Module:
    """Fully connected ReLU layers."""
    _need(all(width >= 1 for width in hidden), "hidden", "a list of widths of at least 1", hidden)
    widths = [prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


@register("model", "pid_made_cnn")
def pid_made_cnn(
    shape: Shape,
    classes: int,
    channels: Sequence[int] = (6, 16),
    hidden: Sequence[int] = (64, 32),
    dropout: Sequence[float] = (0.3, 0.2),
) -> nn.Module:
    """The CNN of PID-MADE: two 5x5 convolutions with pooling, two hidden layers with dropout.

    The authors' larger one for BloodMNIST has channels 16, 32 and hidden layers 128, 64.
    """
    for option, widths in (("channels", channels), ("hidden", hidden)):
        _need(len(widths) == 2 and min(widths) >= 1, option, "two widths of at least 1", widths)
    _need(len(dropout) == 2 and 0 <= min(dropout) <= max(dropout) <= 1, "dropout", "two shares from 0 to 1", dropout)
    c, h, w = image(shape, 16)
    flat = channels[1] * (((h - 4) // 2 - 4) // 2) * (((w - 4) // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(c, channels[0], 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels[0], channels[1], 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(flat, hidden[0]), nn.ReLU(), nn.Dropout(dropout[0]),
        nn.Linear(hidden[0], hidden[1]), nn.ReLU(), nn.Dropout(dropout[1]),
        nn.Linear(hidden[1], classes),
    )  # fmt: skip


class Residual(nn.Module):
    """Two 3x3 convolutions with BatchNorm around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        return self.relu2(out + self.shortcut(x))  # type: ignore[no-any-return]


@register("model", "resnet18")
def resnet18(shape: Shape, classes: int, width: int = 64, pooled: bool = False) -> nn.Module:
    """ResNet-18 for 32x32 images: a 3x3 stem without pooling; 11.2 M parameters at width 64.

    ``pooled`` has the stem for large images, a 7x7 convolution and pooling that leave a quarter of each side.
    """
    _need(width >= 1, "width", "at least 1", width)
    c, _, _ = image(shape, 8)
    stem = nn.Conv2d(c, width, 7, 2, 3, bias=False) if pooled else nn.Conv2d(c, width, 3, padding=1, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU()]
    if pooled:
        layers.append(nn.MaxPool2d(3, 2, padding=1))
    inputs = width
    for i, outputs in enumerate((width, 2 * width, 4 * width, 8 * width)):
        layers += [Residual(inputs, outputs, 1 if i == 0 else 2), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _need(met: bool, option: str, rule: str, value: object) -> None:
    if not met:
        raise ValueError(f"option {option!r} is {rule}; got {value}")


def image(shape: Shape, smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ValueError(f"needs images of channels x at least {smallest} x {smallest}; got input shape {shape}")
    return shape[0], shape[1], shape[2]
