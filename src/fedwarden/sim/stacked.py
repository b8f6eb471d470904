"""Many copies of one small model as a single one: parameters stacked over clients, the batch as the last axis.

With the batch innermost, a convolution is a copy of long runs and one batched product, pooling is a maximum of slices,
and every operation serves all clients of the group at once. The same code runs under a captured CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Layer = Callable[[Tensor, list[Tensor], "Noise"], Tensor]
"""Activations (g, features..., b), the layer's stacked parameters, and the source of dropout masks."""


class Noise:
    """Dropout masks drawn from one generator per client, so that a client's masks do not depend on its group."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        self.generators = generators

    def keep(self, active: int, features: int, batch: int, p: float, device: torch.device) -> Tensor:
        """Scaled 0/1 masks (active, features, batch)."""
        masks = torch.stack([keep_mask(batch, features, p, g) for g in self.generators[:active]])
        return masks.transpose(1, 2).to(device)


def keep_mask(batch: int, features: int, p: float, generator: torch.Generator) -> Tensor:
    """An inverted-dropout mask: 0 with probability p, else 1 / (1 - p)."""
    kept = (torch.rand(batch, features, generator=generator) >= p).to(torch.float32)
    return kept / (1 - p) if p < 1 else kept


class Convolution(torch.autograd.Function):
    """Stride-1 convolution of (g, c, h, w, b) with kernels (g, o, c, k, m), one kernel set per client."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        g, c, h, w, b = x.shape
        _, o, _, k, m = weight.shape
        rows, cols = h - k + 1, w - m + 1
        strides = (c * h * w * b, h * w * b, w * b, b, w * b, 1)
        # neighbouring columns of one image row lie side by side for all samples: runs of cols * b numbers
        windows = x.contiguous().as_strided((g, c, k, m, rows, cols * b), strides)
        patches = windows.reshape(g, c * k * m, rows * cols * b)
        ctx.save_for_backward(patches, weight)
        ctx.geometry = (c, h, w, b, k, m, rows, cols)
        flat = torch.baddbmm(bias[:, :, None], weight.reshape(g, o, -1), patches)
        return flat.reshape(g, o, rows, cols, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        patches, weight = ctx.saved_tensors
        c, h, w, b, k, m, rows, cols = ctx.geometry
        g, o = weight.shape[:2]
        grad = grads[0].reshape(g, o, -1)
        to_weight = torch.bmm(grad, patches.transpose(1, 2)).reshape(weight.shape)
        to_input = None
        if ctx.needs_input_grad[0]:
            spread = torch.bmm(weight.reshape(g, o, -1).transpose(1, 2), grad).reshape(g, c, k, m, rows, cols * b)
            to_input = torch.zeros(g, c, h, w * b, dtype=grad.dtype, device=grad.device)
            for i in range(k):
                for j in range(m):
                    to_input[:, :, i : i + rows, j * b : (j + cols) * b] += spread[:, :, i, j]
            to_input = to_input.reshape(g, c, h, w, b)
        return to_input, to_weight, grad.sum(dim=2)


class MaxPool(torch.autograd.Function):
    """2x2 maximum of (g, c, h, w, b); among equal values the first in reading order gets the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        g, c, h, w, b = x.shape
        x = x[:, :, : h // 2 * 2, : w // 2 * 2]
        pairs = x.reshape(g, c, h // 2 * 2, w // 2, 2, b)
        left, right = pairs[:, :, :, :, 0], pairs[:, :, :, :, 1]
        from_right = right > left
        rows = torch.maximum(left, right).reshape(g, c, h // 2, 2, w // 2, b)
        upper, lower = rows[:, :, :, 0], rows[:, :, :, 1]
        from_lower = lower > upper
        ctx.save_for_backward(from_right, from_lower)
        ctx.size = (h, w)
        return torch.maximum(upper, lower)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        from_right, from_lower = ctx.saved_tensors
        grad = grads[0]
        g, c, h, w, b = grad.shape
        rows = grad.new_empty(g, c, h, 2, w, b)
        torch.mul(grad, from_lower, out=rows[:, :, :, 1])
        torch.sub(grad, rows[:, :, :, 1], out=rows[:, :, :, 0])
        rows = rows.reshape(g, c, 2 * h, w, b)
        pairs = grad.new_empty(g, c, 2 * h, w, 2, b)
        torch.mul(rows, from_right, out=pairs[:, :, :, :, 1])
        torch.sub(rows, pairs[:, :, :, :, 1], out=pairs[:, :, :, :, 0])
        full = pairs.reshape(g, c, 2 * h, 2 * w, b)
        height, width = ctx.size
        return F.pad(full, (0, 0, 0, width - 2 * w, 0, height - 2 * h)) if (height, width) != (2 * h, 2 * w) else full


def _linear(x: Tensor, p: list[Tensor], noise: Noise) -> Tensor:
    return torch.baddbmm(p[1][:, :, None], p[0], x)


def _convolve(padding: tuple[int, int]) -> Layer:
    def layer(x: Tensor, p: list[Tensor], noise: Noise) -> Tensor:
        if any(padding):
            x = F.pad(x, (0, 0, padding[1], padding[1], padding[0], padding[0]))
        return Convolution.apply(x, p[0], p[1])  # type: ignore[no-any-return, no-untyped-call]

    return layer


def _dropout(p: float) -> Layer:
    def layer(x: Tensor, parameters: list[Tensor], noise: Noise) -> Tensor:
        if p == 0:
            return x
        flat = x.reshape(len(x), -1, x.shape[-1])
        return (flat * noise.keep(len(x), flat.shape[1], x.shape[-1], p, x.device)).reshape(x.shape)

    return layer


@dataclass(frozen=True)
class Stacked:
    """The layers of a sequential model in stacked form; each takes the next ``counts`` parameters."""

    layers: tuple[Layer, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Stacked | None:
        """The stacked form of a sequential model of known layers, or None where there is none."""
        frozen = any(not p.requires_grad for p in model.parameters())
        if type(model) is not nn.Sequential or frozen or len(set(model)) < len(model) or list(model.buffers()):
            return None
        found = [_stack(layer) for layer in model]
        if any(layer is None for layer in found):
            return None
        layers = [layer for layer in found if layer is not None]
        counts = [len(list(layer.parameters())) for layer in model]
        # a maximum of rectified values is the rectified maximum, on a quarter of the numbers
        for i, (a, b) in enumerate(zip(model, list(model)[1:], strict=False)):
            if isinstance(a, nn.ReLU) and isinstance(b, nn.MaxPool2d):
                layers[i], layers[i + 1] = layers[i + 1], layers[i]
        return cls(tuple(layers), tuple(counts))

    def __call__(self, x: Tensor, parameters: list[Tensor], noise: Noise) -> Tensor:
        """Logits (g, classes, b) of features (g, features..., b)."""
        at = 0
        for layer, count in zip(self.layers, self.counts, strict=True):
            x = layer(x, parameters[at : at + count], noise)
            at += count
        return x


def _stack(layer: nn.Module) -> Layer | None:
    if not type(layer).__module__.startswith("torch.nn."):  # a subclass may compute something else
        return None
    match layer:
        case nn.Linear() if layer.bias is not None:
            return _linear
        case nn.Conv2d() if (
            layer.stride == layer.dilation == (1, 1)
            and layer.groups == 1
            and layer.bias is not None
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
        ):
            return _convolve((layer.padding[0], layer.padding[1]))
        case nn.MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False, return_indices=False):
            return lambda x, p, noise: MaxPool.apply(x)  # type: ignore[no-untyped-call]
        case nn.ReLU():
            return lambda x, p, noise: F.relu(x)
        case nn.Tanh():
            return lambda x, p, noise: torch.tanh(x)
        case nn.Sigmoid():
            return lambda x, p, noise: torch.sigmoid(x)
        case nn.Flatten(start_dim=1, end_dim=-1):
            return lambda x, p, noise: x.reshape(len(x), -1, x.shape[-1])
        case nn.Dropout():
            return _dropout(layer.p)
        case nn.Identity():
            return lambda x, p, noise: x
    return None
