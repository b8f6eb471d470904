"""Local training of the clients of a round.

``sequential`` trains any ``nn.Module``, one client after another: the reference. ``stacked`` trains a group of clients
of one sequential model at once and gives the same result within float tolerance: every client takes its own batches
in its own order, exactly as many steps as its data asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from ..core.layout import Layout
from ..core.seeds import numpy_rng, torch_rng
from .stacked import Noise, Stacked, keep_mask


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: optimiser, epochs, batches, and the FedProx pull towards the global model."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    epochs: int = 1
    batch_size: int = 32
    proximal: float = 0.0


@dataclass(frozen=True, eq=False)
class Shard:
    """One client's training data in one round."""

    client_id: str
    x: Tensor
    y: Tensor
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


def batches(rows: NDArray[np.int64], batch_size: int, epochs: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """The rows of each step: every epoch a fresh order, its last batch as small as it comes."""
    steps = []
    for _ in range(epochs):
        order = rng.permutation(rows)
        steps += [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return steps


def plan(shard: Shard, training: LocalTraining, round: int, seed: int) -> list[NDArray[np.int64]]:
    """A client's batches of one round."""
    rng = numpy_rng(seed, "batches", round, shard.client_id)
    return batches(shard.rows, training.batch_size, training.epochs, rng)


class StackedOptimizer:
    """SGD or Adam over stacked parameters through torch's fused kernels; clients that have finished are left out."""

    def __init__(self, training: LocalTraining, weights: Sequence[Tensor]) -> None:
        self.training = training
        self.first = [torch.zeros_like(w) for w in weights] if training.optimizer == "adam" or training.momentum else []
        self.second = [torch.zeros_like(w) for w in weights] if training.optimizer == "adam" else []
        self.taken = [torch.zeros((), dtype=torch.float32, device=w.device) for w in weights]

    def reset(self) -> None:
        """Back to no step taken, in the same memory."""
        for tensor in (*self.first, *self.second, *self.taken):
            tensor.zero_()

    def step(self, weights: Sequence[Tensor], grads: Sequence[Tensor], active: int) -> None:
        """One step on the first ``active`` clients; the weights given are theirs alone."""
        t, p, g = self.training, list(weights), list(grads)
        first = [m[:active] for m in self.first]
        if t.optimizer == "adam":
            adam(
                p, g, first, [v[:active] for v in self.second], [], self.taken, fused=True, amsgrad=False,
                beta1=0.9, beta2=0.999, lr=t.lr, weight_decay=t.weight_decay, eps=1e-8, maximize=False,
            )  # fmt: skip
        else:
            buffers: list[Tensor | None] = [*first] if first else [None] * len(p)
            sgd(
                p, g, buffers, fused=True, weight_decay=t.weight_decay, momentum=t.momentum, lr=t.lr,
                dampening=0.0, nesterov=False, maximize=False,
            )  # fmt: skip


def train_sequential(
    model: nn.Module, layout: Layout, params: Tensor, shards: Sequence[Shard], training: LocalTraining, round: int,
    seed: int, out: Tensor,
) -> None:  # fmt: skip
    """Train each client in turn from the flat global parameters; row i of ``out`` becomes client i's model."""
    device = params.device
    for shard, row in zip(shards, out, strict=True):
        model.load_state_dict(layout.unflatten(params))
        model.train()
        weights = [p for p in model.parameters() if p.requires_grad]
        start = [p.detach().clone() for p in weights] if training.proximal else []
        optimizer = _optimizer(training, weights)
        steps = plan(shard, training, round, seed)
        with seeded_dropout(model, training.batch_size, torch_rng(seed, "dropout", round, shard.client_id)):
            for step in steps:
                index = torch.from_numpy(step)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(shard.x[index].to(device)), shard.y[index].to(device))
                loss.backward()
                for p, origin in zip(weights, start, strict=False):
                    if p.grad is not None:
                        p.grad.add_(p.detach() - origin, alpha=training.proximal)
                optimizer.step()
        row.copy_(layout.flatten(model.state_dict()))


def train_stacked(
    stacked: Stacked, layout: Layout, params: Tensor, shards: Sequence[Shard], training: LocalTraining, round: int,
    seed: int, out: Tensor,
) -> None:  # fmt: skip
    """Train a group of clients at once; row i of ``out`` becomes client i's model."""
    plans = [plan(s, training, round, seed) for s in shards]
    order = sorted(range(len(shards)), key=lambda i: -len(plans[i]))  # those with most steps first, finished ones last
    index, weight = schedule([plans[i] for i in order], training.batch_size)
    noise = Noise([torch_rng(seed, "dropout", round, shards[i].client_id) for i in order])
    x, y = shards[0].x, shards[0].y
    origin = [part.reshape(shape) for part, shape in zip(params.split(list(layout.sizes)), layout.shapes, strict=True)]
    weights = [part.repeat(len(shards), *[1] * part.ndim) for part in origin]
    optimizer = StackedOptimizer(training, weights)
    remaining = [len(plans[i]) for i in order]
    for t in range(max(remaining, default=0)):
        active = sum(r > t for r in remaining)
        leaves = [w[:active].requires_grad_() for w in weights]
        features = x[index[t, :active]].to(params.device)
        logits = stacked(features.movedim(1, -1), leaves, noise)
        losses = F.cross_entropy(logits, y[index[t, :active]].to(params.device), reduction="none")
        grads = list(torch.autograd.grad((losses * weight[t, :active].to(params.device)).sum(), leaves))
        current = [w.detach() for w in leaves]
        if training.proximal:
            grads = [g.add(w - o, alpha=training.proximal) for g, w, o in zip(grads, current, origin, strict=True)]
        optimizer.step(current, grads, active)
    flat = torch.cat([w.flatten(1) for w in weights], dim=1)
    for position, i in enumerate(order):
        out[i].copy_(flat[position])


@contextmanager
def seeded_dropout(model: nn.Module, batch_size: int, generator: torch.Generator) -> Iterator[None]:
    """Let the model's dropout layers draw from this generator, a full batch at a time; put back afterwards."""

    def draw(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        x = inputs[0]
        mask = keep_mask(batch_size, x[0].numel(), float(module.p), generator)[: len(x)]  # type: ignore[arg-type]
        return x * mask.reshape(x.shape).to(x.device)

    layers = [m for m in model.modules() if isinstance(m, nn.Dropout) and m.p > 0]
    handles = [m.register_forward_hook(draw) for m in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def schedule(plans: Sequence[list[NDArray[np.int64]]], batch_size: int) -> tuple[Tensor, Tensor]:
    """Row indices (steps, clients, batch) and the weight of each sample in its client's loss; padding weighs 0."""
    steps = max(map(len, plans), default=0)
    index = np.zeros((steps, len(plans), batch_size), dtype=np.int64)
    weight = np.zeros((steps, len(plans), batch_size), dtype=np.float32)
    for c, steps_of in enumerate(plans):
        for t, rows in enumerate(steps_of):
            index[t, c, : len(rows)] = rows
            weight[t, c, : len(rows)] = 1.0 / len(rows)
    return torch.from_numpy(index), torch.from_numpy(weight)


def _optimizer(training: LocalTraining, weights: Sequence[Tensor]) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam(weights, lr=training.lr, weight_decay=training.weight_decay)
    return torch.optim.SGD(weights, lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay)
