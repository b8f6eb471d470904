"""Local training of the clients of a round.

``sequential`` trains any ``nn.Module``, one client after another: the reference. ``stacked`` trains a group of clients
of one sequential model at once and gives the same result within float tolerance: every client takes its own batches
in its own order, exactly as many steps as its data asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...core.generators import torch_rng
from ...core.seeds import numpy_rng
from ...models.layout import Layout
from ..tasks import Classification, Task
from .optimizer import FusedOptimizer, LocalTraining
from .stacked import Noise, Stacked, keep_mask, loss_gradient

CLASSIFICATION, CPU = Classification(), torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Shard:
    """One client's training data in one round."""

    client_id: str
    x: Tensor
    y: Tensor
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


def batches(
    rows: NDArray[np.int64], batch_size: int, epochs: int, rng: np.random.Generator, smallest: int = 1
) -> list[NDArray[np.int64]]:
    """The rows of each step: every epoch a fresh order; its last batch is left out if it is below ``smallest``."""
    steps = []
    for _ in range(epochs):
        order = rng.permutation(rows)
        steps += [order[i : i + batch_size] for i in range(0, len(order) + 1 - smallest, batch_size)]
    return steps


def plan(shard: Shard, training: LocalTraining, round: int, seed: int) -> list[NDArray[np.int64]]:
    """A client's batches of one round."""
    rng = numpy_rng(seed, "batches", round, shard.client_id)
    made = batches(shard.rows, training.batch_size, training.epochs, rng, training.smallest_batch)
    return made[: training.steps]


def train_sequential(
    model: nn.Module, layout: Layout, params: Tensor, shards: Sequence[Shard], training: LocalTraining, round: int,
    seed: int, out: Tensor, task: Task = CLASSIFICATION, home: torch.device = CPU,
) -> None:  # fmt: skip
    """Train each client in turn from the flat global parameters; row i of ``out`` becomes client i's model.

    Dropout is drawn on the device ``home``: on a GPU, large masks cost more to carry there than to use.
    """
    device = params.device
    for shard, row in zip(shards, out, strict=True):
        model.load_state_dict(layout.unflatten(params))
        model.train()
        weights = [p for p in model.parameters() if p.requires_grad]
        start = [p.detach().clone() for p in weights] if training.proximal else []
        optimizer = _optimizer(training, weights)
        steps = plan(shard, training, round, seed)
        asking = torch_rng(seed, "ask", round, shard.client_id)
        dropping = torch_rng(seed, "dropout", round, shard.client_id, home)
        with seeded_dropout(model, training.batch_size, dropping):
            for step in steps:
                index = torch.from_numpy(step)
                optimizer.zero_grad()
                inputs, answers = task.ask(shard.x[index], shard.y[index], asking)
                task.losses(model(inputs.to(device)), answers.to(device)).mean().backward()
                for p, origin in zip(weights, start, strict=False):
                    if p.grad is not None:
                        p.grad.add_(p.detach() - origin, alpha=training.proximal)
                optimizer.step()
        row.copy_(layout.flatten(model.state_dict()))


@contextmanager
def plain_products() -> Iterator[None]:
    """Products of matrices without oneDNN, which on ARM takes up to eight times as long where one is transposed."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags would change settings of precision too
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@torch.inference_mode()  # every call is a little cheaper
@plain_products()
def train_stacked(
    stacked: Stacked, layout: Layout, params: Tensor, shards: Sequence[Shard], training: LocalTraining, round: int,
    seed: int, out: Tensor,
) -> None:  # fmt: skip
    """Train a group of clients at once; row i of ``out`` becomes client i's model."""
    plans = [plan(s, training, round, seed) for s in shards]
    order = sorted(range(len(shards)), key=lambda i: -len(plans[i]))  # those with most steps first, finished ones last
    index, importance = schedule([plans[i] for i in order], training.batch_size)
    noise = Noise([torch_rng(seed, "dropout", round, shards[i].client_id) for i in order])
    x, device = shards[0].x, params.device
    labels, importance = shards[0].y[index].to(device), importance.to(device)
    origin = [part.reshape(shape) for part, shape in zip(params.split(list(layout.sizes)), layout.shapes, strict=True)]
    weights = [part.repeat(len(shards), *[1] * part.ndim) for part in origin]
    optimizer = FusedOptimizer(training, weights, origin)
    batch = x.new_empty(len(shards), training.batch_size, *x.shape[1:])
    start = 0
    for end in sorted({len(p) for p in plans}):  # the steps until the next client has finished share their views
        active, steps = sum(len(p) >= end for p in plans), slice(start, end)
        current, features = [w[:active] for w in weights], batch[:active]
        samples, inputs = features.flatten(0, 1), features.movedim(1, -1)
        parts = index[steps, :active].flatten(1), labels[steps, :active], importance[steps, :active]
        for rows, label, share in zip(*parts, strict=True):
            torch.index_select(x, 0, rows, out=samples)
            logits, back = stacked(inputs.to(device), current, noise)
            optimizer.step(current, back(loss_gradient(logits, label, share)))
        start = end
    for position, i in enumerate(order):
        torch.cat([w[position].flatten() for w in weights], out=out[i])


@contextmanager
def seeded_dropout(model: nn.Module, batch_size: int, generator: torch.Generator) -> Iterator[None]:
    """Let the model's dropout layers draw from this generator, a full batch at a time; put back afterwards."""

    def draw(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        assert isinstance(module, nn.Dropout)
        x = inputs[0]
        draws = torch.rand(batch_size, x[0].numel(), generator=generator, device=generator.device)[: len(x)]
        mask = keep_mask(draws, module.p)
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
        if steps_of:
            sizes = np.fromiter(map(len, steps_of), np.int64, len(steps_of))
            there = np.arange(batch_size) < sizes[:, None]
            index[: len(sizes), c][there] = np.concatenate(steps_of)
            weight[: len(sizes), c][there] = np.repeat(1.0 / sizes, sizes)
    return torch.from_numpy(index), torch.from_numpy(weight)


def _optimizer(training: LocalTraining, weights: Sequence[Tensor]) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam(weights, lr=training.lr, weight_decay=training.weight_decay)
    return torch.optim.SGD(weights, lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay)
