"""Training on a GPU of one client after another: a step of the whole model, whatever its layers, in a CUDA graph.

For models that cannot be stacked, such as those with BatchNorm. A batch of a size that was met before is replayed; the
first of each size runs step by step, which capturing asks for anyway.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwarden.core.generators import torch_rng
from fedwarden.models.layout import Layout
from fedwarden.sim.tasks import Task
from fedwarden.sim.training.optimizer import FusedOptimizer, LocalTraining
from fedwarden.sim.training.stacked import keep_mask
from fedwarden.sim.training.trainer import Shard, plan

KEPT = 64  # sizes of batches that are captured; they share their memory


class Masks:
    """Dropout masks in fixed memory, drawn before each step in the order in which the layers ask for them."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size, self.generator = batch_size, torch.Generator()
        self.kept: list[tuple[Tensor, float]] = []
        self.asked = 0

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Let these masks drop what the model's own layers would, which rest meanwhile."""
        layers = [m for m in model.modules() if isinstance(m, nn.Dropout) and m.p > 0]
        handles = [layer.eval().register_forward_hook(self._drop) for layer in layers]
        try:
            yield
        finally:
            for layer, handle in zip(layers, handles, strict=True):
                layer.train()
                handle.remove()

    def draw(self) -> None:
        """The masks of the next step; those of the very first are drawn when they are asked for."""
        self.asked = 0
        for mask, p in self.kept:
            self._fill(mask, p)

    def _fill(self, mask: Tensor, p: float) -> None:
        draws = torch.rand(mask.shape, generator=self.generator, device=self.generator.device)
        mask.copy_(keep_mask(draws, p))

    def _drop(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        assert isinstance(layer, nn.Dropout)
        x = inputs[0]
        if self.asked == len(self.kept):
            self.kept.append((torch.empty(self.batch_size, x[0].numel(), device=x.device), layer.p))
            self._fill(*self.kept[-1])
        mask = self.kept[self.asked][0][: len(x)]
        self.asked += 1
        return x * mask.reshape(x.shape)


class ModelGraphs:
    """Captured steps of one model, one for each size of batch, kept from round to round like the data on the device."""

    def __init__(
        self, model: nn.Module, layout: Layout, training: LocalTraining, task: Task, x: Tensor, y: Tensor
    ) -> None:
        self.model, self.layout, self.training, self.task, self.x, self.y = model, layout, training, task, x, y
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.origin = [w.detach().clone() for w in self.weights]
        self.optimizer = FusedOptimizer(training, self.weights, self.origin)
        self.masks = Masks(training.batch_size)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.met: set[int] = set()
        self.possible = True

    def train(
        self, params: Tensor, shards: Sequence[Shard], round: int, seed: int, out: Tensor, home: torch.device
    ) -> None:
        """Train each client in turn; row i of ``out`` becomes client i's model. Dropout is drawn on ``home``."""
        with self.masks.on(self.model.train()):
            for shard, row in zip(shards, out, strict=True):
                steps = plan(shard, self.training, round, seed)
                self._capture(steps)
                self._begin(params)
                self.masks.generator = torch_rng(seed, "dropout", round, shard.client_id, home)
                index = torch.from_numpy(np.concatenate(steps) if steps else np.zeros(0, np.int64)).to(params.device)
                for rows in index.split([len(s) for s in steps]) if steps else ():
                    self._take(rows)
                row.copy_(self.layout.flatten(self.model.state_dict()))

    def _capture(self, steps: Sequence[NDArray[np.int64]]) -> None:
        """A graph for every size that was met before; the model's state does not matter, and is not kept."""
        for size in sorted({len(s) for s in steps} & self.met - self.graphs.keys()):
            if not self.possible or len(self.graphs) >= KEPT:
                return
            graph, rows = torch.cuda.CUDAGraph(), torch.zeros(size, dtype=torch.int64, device=self.x.device)
            pool = next(iter(self.graphs.values()))[0].pool() if self.graphs else None
            torch.cuda.synchronize(self.x.device)
            try:
                with (
                    torch.cuda.device(self.x.device),
                    torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream(self.x.device)),
                ):
                    self._step(rows)
            except RuntimeError as error:  # a model that asks the CPU for a number, for one
                self.possible = False
                reason = str(error).splitlines()[0]
                warnings.warn(f"the model is trained step by step, since none can be captured ({reason})", stacklevel=2)
                return
            self.graphs[size] = (graph, rows)

    def _begin(self, params: Tensor) -> None:
        """The client at the global model, with no step taken."""
        self.model.load_state_dict(self.layout.unflatten(params))
        self.optimizer.reset()
        for start, w in zip(self.origin, self.weights, strict=True):
            start.copy_(w.detach())

    def _take(self, rows: Tensor) -> None:
        self.masks.draw()
        if len(rows) in self.graphs:
            graph, fixed = self.graphs[len(rows)]
            fixed.copy_(rows)
            graph.replay()
        else:
            self._step(rows)
            self.met.add(len(rows))

    def _step(self, rows: Tensor) -> None:
        self.masks.asked = 0
        loss = self.task.losses(self.model(self.x[rows]), self.y[rows]).mean()
        gradients = torch.autograd.grad(loss, self.weights, allow_unused=True)
        with torch.no_grad():
            self.optimizer.down(self.weights, gradients)
