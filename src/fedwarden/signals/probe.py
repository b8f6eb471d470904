"""The samples that models are compared on: drawn from data that the server holds, or made where it holds none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..models.batched import at_home, evaluating

Kind = Literal["noise", "optimised"]

STEPS = 20
STEP = 0.1  # of the standard deviation of an input, per step


def draw_probe(inputs: Tensor, size: int = 128, *, rng: torch.Generator) -> Tensor:
    """Samples of a server's own or of a public set, drawn without replacement.

    >>> draw_probe(torch.arange(3), size=3, rng=torch.Generator().manual_seed(0)).sort().values.tolist()
    [0, 1, 2]
    """
    if not 2 <= size <= len(inputs):
        raise ValueError(f"a probe needs at least 2 samples and at most those there are; got {size} of {len(inputs)}")
    return inputs[torch.randperm(len(inputs), generator=rng)[:size].to(inputs.device)]


def synthetic_probe(
    model: nn.Module,
    shape: Sequence[int],
    size: int = 128,
    kind: Kind = "noise",
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    *,
    rng: torch.Generator,
) -> Tensor:
    """Samples for a server that holds none: noise like the inputs, or noise made to look like each class in turn.

        noise       x ~ N(mean, std^2) per channel
        optimised   x <- x + STEP std g / rms(g),   g = d/dx log p(y | x),   y = 0, 1, ..., C - 1, 0, ...   STEPS times

    The steps follow activation maximisation (Erhan et al. 2009; Simonyan et al. 2014) on the given model, in
    evaluation mode; the gradient is scaled per sample, so that no step depends on how sure the model is.

    >>> synthetic_probe(nn.Linear(3, 2), (3,), size=4, mean=(0, 5, 9), std=0, rng=torch.Generator())[0].tolist()
    [0.0, 5.0, 9.0]
    """
    if size < 2 or kind not in get_args(Kind):
        raise ValueError(f"a probe has at least 2 samples of 'noise' or 'optimised' kind; got {size} of {kind!r}")
    centre, spread = (_per_channel(values, shape) for values in (mean, std))
    x = at_home(centre + spread * torch.randn(size, *shape, generator=rng), model)
    return x if kind == "noise" else _towards_classes(model, x, at_home(spread, model))


def _per_channel(values: float | Sequence[float], shape: Sequence[int]) -> Tensor:
    known = torch.as_tensor(values, dtype=torch.float32).reshape(-1)
    if len(known) not in (1, shape[0]):
        raise ValueError(f"mean and std are one number or one per channel, of {shape[0]}; got {len(known)}")
    return known.reshape(-1, *[1] * (len(shape) - 1))


def _towards_classes(model: nn.Module, x: Tensor, spread: Tensor) -> Tensor:
    with evaluating(model), torch.enable_grad():
        for _ in range(STEPS):
            x = x.detach().requires_grad_()
            scores = model(x)
            if not isinstance(scores, Tensor) or scores.dim() != 2:
                raise ValueError("an optimised probe needs a model that gives (N, C) class scores; use kind='noise'")
            wanted = torch.arange(len(x), device=x.device) % scores.shape[1]
            chances = scores.float().log_softmax(dim=1).gather(1, wanted[:, None])
            (gradient,) = torch.autograd.grad(chances.sum(), x)
            x = x + STEP * spread * _unit_rms(gradient)
    return x.detach()


def _unit_rms(rows: Tensor) -> Tensor:
    """Every row scaled to a root mean square of 1, however small it is; a zero row stays zero."""
    flat = rows.flatten(1)
    flat = flat / flat.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    rms = flat.square().mean(dim=1, keepdim=True).sqrt()
    return (flat / rms.where(rms > 0, 1.0)).reshape(rows.shape)
