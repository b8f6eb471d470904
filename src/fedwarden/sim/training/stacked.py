"""Many copies of one small model as a single one: parameters stacked over clients, the batch as the last axis.

With the batch innermost, a convolution is a copy of long runs and one batched product, pooling is a maximum of slices,
and every operation serves all clients of the group at once. Gradients are written out, not recorded: on small models
the record costs as much as the numbers. The same code runs under a captured CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Pull = Callable[[Tensor], Tensor]
"""The gradient at a layer's output -> the gradient at its input."""
Layer = Callable[[Tensor, "Noise"], tuple[Tensor, Pull]]
"""A layer without parameters: activations (g, features..., b) -> its output, and the way back."""

AT_ONCE = 1 << 22  # numbers in windows that a GPU adds at once (24 of 43 µs for 2 M; of 9 M 106, one by one 71)
gate = torch.ops.aten.threshold_backward  # one pass: the gradient where the second argument is above the third, else 0


class Noise:
    """Dropout masks drawn from one generator per client, so that a client's masks do not depend on its group."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        self.generators = generators

    def keep(self, active: int, features: int, batch: int, p: float, device: torch.device) -> Tensor:
        """Scaled 0/1 masks (active, features, batch)."""
        draws = torch.empty(active, batch, features)
        for row, generator in zip(draws, self.generators, strict=False):
            row.uniform_(generator=generator)
        return keep_mask(draws, p).transpose(1, 2).to(device)


def keep_mask(draws: Tensor, p: float) -> Tensor:
    """An inverted-dropout mask of uniform draws: 0 with probability p, else 1 / (1 - p)."""
    kept = (draws >= p).to(torch.float32)
    return kept / (1 - p) if p < 1 else kept


def loss_gradient(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the weighted cross-entropies of logits (g, classes, b), labels and weights (g, b).

        d/dz sum_b w_b * -log softmax(z_b)[y_b] = w_b * (softmax(z_b) - onehot(y_b))

    >>> loss_gradient(torch.zeros(1, 2, 1), torch.tensor([[1]]), torch.tensor([[3.0]])).flatten().tolist()
    [1.5, -1.5]
    """
    weight = weight.unsqueeze(1)
    return logits.softmax(dim=1).mul_(weight).scatter_add_(1, labels.unsqueeze(1), -weight)


Factors = tuple[Tensor, Tensor]
"""(g, outputs, k) and (g, inputs, k): a weight's gradient is left @ right^T, a bias's is left summed over k."""


def matrix(x: Tensor) -> Tensor:
    """(g, rows, ...) as (g, rows, k); on small models a view that changes nothing costs as much as a product."""
    return x if x.ndim == 3 else x.flatten(2)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``weight @ x + bias`` for every client: (g, inputs, ...) -> (g, outputs, ...)."""
    if weight.ndim == 3 and x.ndim > 3:
        raise ValueError(
            f"a stacked linear layer needs flat features; got {x.ndim - 2} axes; set train.trainer to 'sequential'"
        )
    y = torch.baddbmm(bias.unsqueeze(2), matrix(weight), matrix(x))
    return y if x.ndim == 3 else y.reshape(*y.shape[:2], *x.shape[2:])


def overlap(windows: Tensor, b: int) -> Tensor:
    """Windows (g, c, k, m, rows, cols * b) added where they overlap: (g, c, rows + k - 1, (cols + m - 1) * b)."""
    g, c, k, m, rows, run = windows.shape
    total = windows.new_zeros(g, c, rows + k - 1, run + (m - 1) * b)
    for i in range(k):
        for j in range(m):
            total[:, :, i : i + rows, j * b : j * b + run] += windows[:, :, i, j]
    return total


def overlap_at_once(windows: Tensor, b: int) -> Tensor:
    """The same as one sum over windows with zeros around them.

    On a GPU, where the additions of small images take less time than their launches.
    """
    g, c, k, m, rows, run = windows.shape
    x = F.pad(windows, ((m - 1) * b, (m - 1) * b, k - 1, k - 1))
    sg, sc, si, sj, row, _ = x.stride()
    shape = (g, c, rows + k - 1, run + (m - 1) * b, k, m)  # window i, j lies i rows and j columns further back
    return x.as_strided(shape, (sg, sc, row, 1, si - row, sj - b), (k - 1) * row + (m - 1) * b).sum(dim=(4, 5))


def unfold(k: int, m: int) -> Layer:
    """The k x m windows of (g, c, h, w, b) as (g, c * k * m, rows, cols, b): a convolution is affine in them."""

    def layer(x: Tensor, noise: Noise) -> tuple[Tensor, Pull]:
        g, c, h, w, b = x.shape
        rows, cols = h - k + 1, w - m + 1
        strides = (c * h * w * b, h * w * b, w * b, b, w * b, 1)
        # neighbouring columns of one image row lie side by side for all samples: runs of cols * b numbers
        windows = x.contiguous().as_strided((g, c, k, m, rows, cols * b), strides)

        def pull(grad: Tensor) -> Tensor:
            spread = grad.reshape(g, c, k, m, rows, cols * b)
            at_once = grad.is_cuda and grad.numel() <= AT_ONCE
            return (overlap_at_once if at_once else overlap)(spread, b).reshape(g, c, h, w, b)

        return windows.reshape(g, c * k * m, rows, cols, b), pull

    return layer


def pad(vertical: int, horizontal: int) -> Layer:
    """Zeros around (g, c, h, w, b)."""
    edge = (0, 0, horizontal, horizontal, vertical, vertical)
    return lambda x, noise: (F.pad(x, edge), lambda grad: F.pad(grad, [-e for e in edge]))


def max_pool(x: Tensor, noise: Noise) -> tuple[Tensor, Pull]:
    """2x2 maximum of (g, c, h, w, b); among equal values the first in reading order gets the gradient."""
    at_once = x.is_cuda and not torch.are_deterministic_algorithms_enabled()  # torch's own kernel would refuse
    return (pool_at_once if at_once else pool)(x)


def pool(x: Tensor) -> tuple[Tensor, Pull]:
    """By maxima of slices, which a CPU takes in long runs."""
    g, c, height, width, b = x.shape
    h, w = height // 2, width // 2
    pairs = x[:, :, : 2 * h, : 2 * w].reshape(g, c, 2 * h, w, 2, b)
    rows = torch.maximum(pairs[:, :, :, :, 0], pairs[:, :, :, :, 1])
    to_right = rows - pairs[:, :, :, :, 0]  # positive where the right one is larger
    halves = rows.reshape(g, c, h, 2, w, b)
    y = torch.maximum(halves[:, :, :, 0], halves[:, :, :, 1])
    to_lower = y - halves[:, :, :, 0]

    def pull(grad: Tensor) -> Tensor:
        lower = gate(grad, to_lower, 0)
        rows = torch.stack([grad - lower, lower], dim=3).reshape(g, c, 2 * h, w, b)
        right = gate(rows, to_right, 0)
        full = torch.stack([rows - right, right], dim=4).reshape(g, c, 2 * h, 2 * w, b)
        odd = (height - 2 * h, width - 2 * w)
        return F.pad(full, (0, 0, 0, odd[1], 0, odd[0])) if any(odd) else full

    return y, pull


def pool_at_once(x: Tensor) -> tuple[Tensor, Pull]:
    """By torch's own kernels, with samples for channels: on a GPU two launches instead of twelve."""
    g, c, h, w, b = x.shape
    images = x.reshape(g * c, h, w, b).permute(0, 3, 1, 2)
    y, place = torch.ops.aten.max_pool2d_with_indices(images, [2, 2], [2, 2])

    def pull(grad: Tensor) -> Tensor:
        upper = grad.reshape(g * c, h // 2, w // 2, b).permute(0, 3, 1, 2)
        size, edge = [2, 2], [0, 0]
        full: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            upper, images, size, size, edge, [1, 1], False, place
        )
        return full.permute(0, 2, 3, 1).reshape(x.shape)

    return y.permute(0, 2, 3, 1).reshape(g, c, h // 2, w // 2, b), pull


def relu(x: Tensor, noise: Noise) -> tuple[Tensor, Pull]:
    y = torch.relu(x)
    return y, lambda grad: gate(grad, y, 0)


def tanh(x: Tensor, noise: Noise) -> tuple[Tensor, Pull]:
    y = torch.tanh(x)
    return y, lambda grad: grad * (1 - y * y)


def sigmoid(x: Tensor, noise: Noise) -> tuple[Tensor, Pull]:
    y = torch.sigmoid(x)
    return y, lambda grad: grad * y * (1 - y)


def flatten(x: Tensor, noise: Noise) -> tuple[Tensor, Pull]:
    shape = x.shape
    return x.reshape(len(x), -1, shape[-1]), lambda grad: grad.reshape(shape)


def dropout(p: float) -> Layer:
    def layer(x: Tensor, noise: Noise) -> tuple[Tensor, Pull]:
        g, b = len(x), x.shape[-1]
        mask = noise.keep(g, x[0].numel() // b, b, p, x.device).reshape(x.shape)
        return x * mask, lambda grad: grad * mask

    return layer


@dataclass(frozen=True)
class Stacked:
    """A sequential model: ``segments`` of layers without parameters, an affine layer between any two of them."""

    segments: tuple[tuple[Layer, ...], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Stacked | None:
        """The stacked form of a sequential model of known layers, or None where there is none."""
        frozen = any(not p.requires_grad for p in model.parameters())
        if type(model) is not nn.Sequential or frozen or len(set(model)) < len(model) or list(model.buffers()):
            return None
        modules = list(model)
        # a maximum of rectified values is the rectified maximum, on a quarter of the numbers
        for i, (a, b) in enumerate(pairwise(model)):
            if isinstance(a, nn.ReLU) and isinstance(b, nn.MaxPool2d):
                modules[i], modules[i + 1] = b, a
        segments: list[tuple[Layer, ...]] = [()]
        for module in modules:
            layers = _layers(module)
            if layers is None:
                return None
            segments[-1] += layers
            if isinstance(module, nn.Linear | nn.Conv2d):
                segments.append(())
        return cls(tuple(segments))

    def __call__(
        self, x: Tensor, weights: Sequence[Tensor], noise: Noise
    ) -> tuple[Tensor, Callable[[Tensor], list[Factors]]]:
        """Logits (g, classes, b) of features (g, features..., b), and the way from their gradient to the weights'."""
        inputs: list[Tensor] = []
        pulls: list[list[Pull]] = []
        for i, segment in enumerate(self.segments):
            if i:
                inputs.append(x)
                x = affine(x, weights[2 * i - 2], weights[2 * i - 1])
            pulls.append([])
            for layer in segment:
                x, pull = layer(x, noise)
                pulls[-1].append(pull)

        def back(grad: Tensor) -> list[Factors]:
            factors = []
            for i in range(len(inputs), 0, -1):
                for pull in reversed(pulls[i]):
                    grad = pull(grad)
                x, grad = inputs[i - 1], matrix(grad)
                factors.append((grad, matrix(x)))
                if i > 1:  # what comes before the first affine layer learns nothing
                    grad = torch.bmm(matrix(weights[2 * i - 2]).mT, grad)
                    grad = grad if x.ndim == 3 else grad.reshape(x.shape)
            return factors[::-1]

        return x, back


def _layers(module: nn.Module) -> tuple[Layer, ...] | None:
    """The layers without parameters that a module amounts to, before its affine one if it has weights."""
    if not type(module).__module__.startswith("torch.nn."):  # a subclass may compute something else
        return None
    match module:
        case nn.Linear() if module.bias is not None:
            return ()
        case nn.Conv2d() if (
            module.stride == module.dilation == (1, 1)
            and module.groups == 1
            and module.bias is not None
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        ):
            (k, m), (vertical, horizontal) = module.kernel_size, module.padding
            return (pad(vertical, horizontal), unfold(k, m)) if vertical or horizontal else (unfold(k, m),)
        case nn.MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False, return_indices=False):
            return (max_pool,)
        case nn.ReLU():
            return (relu,)
        case nn.Tanh():
            return (tanh,)
        case nn.Sigmoid():
            return (sigmoid,)
        case nn.Flatten(start_dim=1, end_dim=-1):
            return (flatten,)
        case nn.Dropout():
            return (dropout(module.p),) if module.p else ()
        case nn.Identity():
            return ()
    return None
