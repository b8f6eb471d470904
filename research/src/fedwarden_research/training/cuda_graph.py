"""Stacked training on a GPU: one training step of all clients captured in a CUDA graph and replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedwarden.core.generators import torch_rng
from fedwarden.models.layout import Layout
from fedwarden.sim.training.optimizer import FusedOptimizer, LocalTraining
from fedwarden.sim.training.stacked import Stacked, keep_mask, loss_gradient
from fedwarden.sim.training.trainer import Shard, plan, schedule

KEPT = 3  # captured steps of different numbers of clients; each has memory for its own models and activations
FIRST, AHEAD = 1 << 16, 1 << 20  # numbers of dropout that are drawn at a time: few at first, while the device waits


Timetable = tuple[Tensor, Tensor, Tensor]
"""How many steps each client takes, and the schedule of all of them."""


def timetable(shards: Sequence[Shard], training: LocalTraining, round: int, seed: int) -> Timetable:
    plans = [plan(s, training, round, seed) for s in shards]
    return torch.tensor([len(p) for p in plans]), *schedule(plans, training.batch_size)


def same_data(some: Sequence[Shard], others: Sequence[Shard]) -> bool:
    """Whether these are the same clients with the same rows."""
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(a.client_id == b.client_id and a.rows is b.rows for a, b in pairs)


class Uploaded:
    """Dropout masks drawn on the CPU, as everywhere, and copied into fixed buffers before each replay.

    Those of some steps are drawn at a time, while the device works on the steps before.
    """

    def __init__(self) -> None:
        self.masks: list[tuple[Tensor, float]] = []
        self.at = 0
        self.recording = True
        self.generators: list[torch.Generator] = []
        self.ahead: Iterator[list[Tensor]] = iter(())
        self.drawn = FIRST

    def keep(self, active: int, features: int, batch: int, p: float, device: torch.device) -> Tensor:
        if self.recording:
            self.masks.append((torch.ones(active, features, batch, device=device), p))
        mask = self.masks[self.at % len(self.masks)][0]
        self.at += 1
        return mask

    def begin(self, generators: list[torch.Generator]) -> None:
        self.generators, self.ahead, self.drawn = generators, iter(()), FIRST

    def draw(self) -> None:
        """The masks of the next step."""
        if self.masks:
            now = next(self.ahead, None)
            if now is None:
                self.ahead = self._some_steps()
                now = next(self.ahead)
            for (mask, _), drawn in zip(self.masks, now, strict=True):
                mask.copy_(drawn)

    def _some_steps(self) -> Iterator[list[Tensor]]:
        """Each client's numbers in the order in which ``Noise`` draws them: step by step, and there layer by layer."""
        n, device = len(self.generators), self.masks[0][0].device
        sizes = [mask[0].numel() for mask, _ in self.masks]
        steps = max(1, self.drawn // (n * sum(sizes)))
        self.drawn = min(2 * self.drawn, AHEAD)
        draws = torch.empty(n, steps, sum(sizes), pin_memory=device.type == "cuda")
        for row, generator in zip(draws, self.generators, strict=True):
            row.uniform_(generator=generator)
        layers = draws.to(device, non_blocking=True).split(sizes, dim=2)
        made = [
            keep_mask(part, p).reshape(n, steps, mask.shape[2], mask.shape[1]).transpose(2, 3)
            for part, (mask, p) in zip(layers, self.masks, strict=True)
        ]
        return ([masks[:, t] for masks in made] for t in range(steps))


class Captured:
    """One training step of n clients at once on memory of its own, as a CUDA graph.

    Every client takes part in every step; when one has made its last, its model is copied before the next step.
    """

    def __init__(self, stacked: Stacked, layout: Layout, training: LocalTraining, x: Tensor, y: Tensor, n: int) -> None:
        device = x.device
        self.sizes, self.noise = list(layout.sizes), Uploaded()
        self.origin = [torch.zeros(shape, device=device) for shape in layout.shapes]
        self.weights = [part.repeat(n, *[1] * part.ndim) for part in self.origin]
        self.optimizer = FusedOptimizer(training, self.weights, self.origin)
        # all parameters take their steps at the same time: each is too small to keep a GPU busy
        streams = [torch.cuda.Stream(device) for _ in self.weights]
        self.rows = torch.zeros(n, training.batch_size, dtype=torch.int64, device=device)
        self.importance = torch.zeros(n, training.batch_size, device=device)

        def step() -> None:
            self.noise.at = 0
            logits, back = stacked(x[self.rows].movedim(1, -1), self.weights, self.noise)  # type: ignore[arg-type]
            factors, here = (
                back(loss_gradient(logits, y[self.rows], self.importance)),
                torch.cuda.current_stream(device),
            )
            for i, (stream, weight) in enumerate(zip(streams, self.weights, strict=True)):
                stream.wait_stream(here)
                with torch.cuda.stream(stream):
                    self.optimizer.step([weight], factors, [i])
            for stream in streams:
                here.wait_stream(stream)

        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):  # a first run outside the graph, as capturing asks for; begin() undoes it
            step()
            self.noise.recording = False
            step()
        torch.cuda.current_stream(device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        # a stream of this device: torch's own is on the device that was first captured from
        with torch.cuda.device(device), torch.cuda.graph(self.graph, stream=torch.cuda.Stream(device)):
            step()

    def begin(self, params: Tensor, generators: list[torch.Generator]) -> None:
        """Every client at the global model, with no step taken."""
        for part, start, w in zip(params.split(self.sizes), self.origin, self.weights, strict=True):
            start.copy_(part.reshape(start.shape))
            w.copy_(start)
        self.optimizer.reset()
        self.noise.begin(generators)

    def step(self, rows: Tensor, importance: Tensor) -> None:
        self.rows.copy_(rows)
        self.importance.copy_(importance)
        self.noise.draw()
        self.graph.replay()

    def models(self, clients: Tensor) -> Tensor:
        """The models of some clients as they are now, (clients, d)."""
        return torch.cat([w[clients].flatten(1) for w in self.weights], dim=1)


class Graphs:
    """The captured steps of one training, kept from round to round by their number of clients.

    Capturing a step, and carrying the data to the device, cost as much as many steps.
    """

    def __init__(self, stacked: Stacked, layout: Layout, training: LocalTraining, x: Tensor, y: Tensor) -> None:
        self.stacked, self.layout, self.training, self.x, self.y = stacked, layout, training, x, y
        self._kept: dict[int, Captured] = {}
        self._ahead: tuple[tuple[int, int], Sequence[Shard], Timetable] | None = None

    def of(self, n: int) -> Captured:
        """The step of n clients, captured where it is new; of many numbers of clients the latest are kept."""
        found = self._kept.pop(n, None)
        if found is None:
            while len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            found = Captured(self.stacked, self.layout, self.training, self.x, self.y, n)
        self._kept[n] = found
        return found

    def train(self, params: Tensor, shards: Sequence[Shard], round: int, seed: int, out: Tensor) -> None:
        """Train all clients at once; row i of ``out`` becomes client i's model."""
        steps, *parts = self._timetable(shards, round, seed)
        index, weight = (part.to(params.device) for part in parts)
        captured, final = self.of(len(shards)), params.repeat(len(shards), 1)
        captured.begin(params, [torch_rng(seed, "dropout", round, s.client_id) for s in shards])
        ends = set(steps.tolist())
        first = min((t for t in ends if t), default=0)
        for t in range(len(index)):
            captured.step(index[t], weight[t])
            if t + 1 == first:  # the device is behind, and what follows waits for it: time for the next round
                self._ahead = (round + 1, seed), shards, timetable(shards, self.training, round + 1, seed)
            if t + 1 in ends:
                done = torch.nonzero(steps == t + 1)[:, 0].to(params.device)
                final[done] = captured.models(done)
        out.copy_(final)

    def _timetable(self, shards: Sequence[Shard], round: int, seed: int) -> Timetable:
        """That of a round, if it was not made while the device was at work on the round before."""
        known = self._ahead
        if known is not None and known[0] == (round, seed) and same_data(known[1], shards):
            return known[2]
        return timetable(shards, self.training, round, seed)
