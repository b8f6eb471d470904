"""Stacked training on a GPU: one training step of all clients captured in a CUDA graph and replayed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.generators import torch_rng
from ...models.layout import Layout
from .stacked import Noise, Stacked, loss_gradient
from .trainer import LocalTraining, Shard, StackedOptimizer, plan, schedule


class Uploaded:
    """Dropout masks drawn on the CPU, as everywhere, and copied into fixed buffers before each replay."""

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        self.masks: list[tuple[Tensor, float]] = []
        self.at = 0
        self.recording = True

    def keep(self, active: int, features: int, batch: int, p: float, device: torch.device) -> Tensor:
        if self.recording:
            self.masks.append((torch.ones(active, features, batch, device=device), p))
        mask = self.masks[self.at % len(self.masks)][0]
        self.at += 1
        return mask

    def draw(self) -> None:
        for mask, p in self.masks:
            active, features, batch = mask.shape
            mask.copy_(self.noise.keep(active, features, batch, p, torch.device("cpu")), non_blocking=True)


def train_captured(
    stacked: Stacked, layout: Layout, params: Tensor, shards: Sequence[Shard], training: LocalTraining, round: int,
    seed: int, out: Tensor,
) -> None:  # fmt: skip
    """Train all clients at once on the GPU; row i of ``out`` becomes client i's model.

    Every client takes part in every step; one that has finished has its model kept from its own last step.
    """
    device, n = params.device, len(shards)
    plans = [plan(s, training, round, seed) for s in shards]
    index, weight = (part.to(device) for part in schedule(plans, training.batch_size))
    x, y = shards[0].x.to(device), shards[0].y.to(device)
    noise = Uploaded(Noise([torch_rng(seed, "dropout", round, s.client_id) for s in shards]))
    origin = [part.reshape(shape) for part, shape in zip(params.split(list(layout.sizes)), layout.shapes, strict=True)]
    weights = [part.repeat(n, *[1] * part.ndim) for part in origin]
    final = [w.clone() for w in weights]
    optimizer = StackedOptimizer(training, weights, origin)
    rows, importance = index.new_zeros(index.shape[1:]), weight.new_zeros(weight.shape[1:])
    busy = torch.zeros(n, dtype=torch.bool, device=device)

    def step() -> None:
        noise.at = 0
        logits, back = stacked(x[rows].movedim(1, -1), weights, noise)  # type: ignore[arg-type]
        optimizer.step(weights, back(loss_gradient(logits, y[rows], importance)))
        for kept, w in zip(final, weights, strict=True):
            torch.where(busy.reshape(-1, *[1] * (w.ndim - 1)), w, kept, out=kept)

    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # a first run outside the graph, as capturing asks for; undone below
        step()
        noise.recording = False
        step()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # a stream of this device: torch's own is on the device that was first captured from
    with torch.cuda.device(device), torch.cuda.graph(graph, stream=torch.cuda.Stream(device)):
        step()
    for w, start in zip(weights, origin, strict=True):
        w.copy_(start)
    optimizer.reset()
    steps = torch.tensor([len(p) for p in plans], device=device)
    for t in range(len(index)):
        rows.copy_(index[t])
        importance.copy_(weight[t])
        busy.copy_(steps > t)
        noise.draw()
        graph.replay()
    out.copy_(torch.cat([w.flatten(1) for w in final], dim=1))
