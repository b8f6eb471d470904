"""Clients of BackFed's setting: which images each holds, its batches, and its training, ten at once on a GPU.

Each client seeds itself with the same number in every round, as in github.com/thinh-dao/BackFed at commit b92838e, so
that it draws the same batches in the same mirrorings each time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwarden.core.seeds import seed_of
from fedwarden.sim.models import build_model

from .backfed_rules import Replies

CLIENTS, ASKED, ATTACKERS, TARGET, BATCH, SEED = 100, 10, 10, 2, 64, 123456
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)

Parts = list[NDArray[np.int64]]

Asking = tuple[list[int], frozenset[int]]
"""The clients of a round, and which of them attack."""


def schedule(
    labels: NDArray[np.int64], attack: bool, rounds: int, early: bool = False, same: bool = False
) -> tuple[Parts, list[Asking]]:
    """The images of each client and the clients of each round, by the calls that their code makes, in its order.

    An attack draws its attackers before the images are dealt, which changes how class 0 is shuffled (``same``: it does
    not). The ten of 300 rounds are drawn before the attack; a round without attackers is drawn again, and none of
    its clients attacks; from the honest ones where the attack begins a round ``early``.
    """
    draw, dirichlet = random.Random(SEED + 6), np.random.RandomState(SEED + 4)
    bad = frozenset(draw.sample(range(CLIENTS), ATTACKERS)) if attack else frozenset[int]()
    if same:
        draw = random.Random(SEED + 6)
    parts: list[list[int]] = [[] for _ in range(CLIENTS)]
    order = list(range(CLIENTS))
    for c in range(10):
        left = np.flatnonzero(labels == c).tolist()
        total = len(left)
        draw.shuffle(left)
        share = dirichlet.dirichlet([0.5] * CLIENTS)
        draw.shuffle(order)
        for i, client in enumerate(order):
            n = round(share[i] * total) if i < CLIENTS - 1 else len(left)
            parts[client] += left[:n]
            left = left[n:]
    drawn = [draw.sample(range(CLIENTS), ASKED) for _ in range(300 + early if attack else 0)][early:]
    again = sorted(set(range(CLIENTS)) - bad) if early else range(CLIENTS)
    drawn += [[] for _ in range(rounds - len(drawn))]
    asked = [
        (ids, hit) if (hit := bad.intersection(ids)) else (draw.sample(again, ASKED), hit) for ids in drawn[:rounds]
    ]
    return [np.array(part, dtype=np.int64) for part in parts], asked


@dataclass(frozen=True)
class Steps:
    """All batches of a client in a round: images and mirrorings (steps, 64), sizes, rates, the last epoch's first."""

    index: Tensor
    mirrored: Tensor
    sizes: tuple[int, ...]
    rates: Tensor
    last: int


def steps(part: NDArray[np.int64], attacks: bool, seed: int, device: str = "cpu") -> Steps:
    """The batches that torch's DataLoader with shuffling and random mirroring draws from this seed.

    The last batch of an epoch is used as it is, unless it is a single image.

    >>> made = steps(np.arange(130), False, 1)
    >>> made.sizes, made.last, [round(float(rate), 4) for rate in steps(np.arange(9), True, 1).rates]
    ((64, 64, 2, 64, 64, 2), 3, [0.05, 0.05, 0.005, 0.005, 0.0005, 0.0005])
    """
    g, found, last = torch.Generator().manual_seed(seed), list[tuple[Tensor, Tensor, float]](), 0
    whole = torch.from_numpy(part)
    for epoch in range(6 if attacks else 2):
        torch.empty((), dtype=torch.int64).random_(
            generator=g
        )  # the loader's base seed, for workers that there are not
        own = int(torch.empty((), dtype=torch.int64).random_(generator=g).item())
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(own))
        flips = torch.rand(len(part), generator=g) < 0.5
        last, rate = len(found), 0.05 * 0.1 ** (epoch // 2) if attacks else 0.1
        for i in range(0, len(part), BATCH):
            if len(rows := whole[order[i : i + BATCH]]) > 1:
                found.append((rows, flips[i : i + BATCH], rate))
    index, mirrored = (torch.zeros(len(found), BATCH, dtype=kind) for kind in (torch.long, torch.bool))
    for k, (rows, flip, _) in enumerate(found):
        index[k, : len(rows)], mirrored[k, : len(rows)] = rows, flip
    rates = torch.tensor([rate for _, _, rate in found])
    return Steps(
        index.to(device), mirrored.to(device), tuple(len(rows) for rows, _, _ in found), rates.to(device), last
    )


def bind(net: nn.Module, params: Tensor, buffers: Tensor, gradient: Tensor | None = None) -> nn.Module:
    """The model, its weights, running statistics and gradients now in these rows; BatchNorm without its counters."""
    sizes = [p.numel() for p in net.parameters()]
    for p, row in zip(net.parameters(), params.split(sizes), strict=True):
        p.data = row.view_as(p)
    for p, row in zip(net.parameters(), () if gradient is None else gradient.split(sizes), strict=gradient is not None):
        p.grad = row.view_as(p)
    at = 0
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            n = module.num_features
            module.running_mean, module.running_var = buffers[at : at + n], buffers[at + n : at + 2 * n]
            module.num_batches_tracked, at = None, at + 2 * n
    return net


class Setting:
    """The images on the device, a model to test with, and ten places where clients train at once."""

    def __init__(self, data: Sequence[Tensor], device: str, most: int, width: int = 64) -> None:
        self.device, self.cuda = device, device.startswith("cuda")
        self.x, self.y, self.x_test, self.y_test = (part.to(device) for part in data)
        self.mean, self.std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, STD))
        self.square = torch.zeros(1, 1, 32, 32, dtype=torch.bool, device=device)
        self.square[..., 25:30, 25:30] = True
        options, norms = {"pooled": True, "width": width}, nn.BatchNorm2d
        self.made = partial(build_model, "resnet18", options, (3, 32, 32), 10, SEED)
        self.net = self.made().to(device)
        g = torch.Generator().manual_seed(SEED)
        for module in self.net.modules():
            if isinstance(module, nn.Conv2d):  # as torchvision draws them
                drawn = torch.empty(module.weight.shape)
                module.weight.data = nn.init.kaiming_normal_(drawn, mode="fan_out", nonlinearity="relu", generator=g)
        self.sizes = [p.numel() for p in self.net.parameters()]
        weights = torch.cat([p.detach().cpu().reshape(-1) for p in self.net.parameters()]).to(device)
        each = [
            torch.tensor([0.0, 1.0]).repeat_interleave(m.num_features)
            for m in self.net.modules()
            if isinstance(m, norms)
        ]
        self.start = weights, torch.cat(each).to(device)
        self.places = [Place(self, most) for _ in range(ASKED)]
        self.plans: dict[tuple[bool, bytes], Steps] = {}

    def steps(self, part: NDArray[np.int64], attacks: bool, fresh: int | None) -> Steps:
        """A client's batches: the same ones in every round, or those of this seed."""
        if fresh is not None:
            return steps(part, attacks, fresh, self.device)
        key = attacks, part.tobytes()
        if key not in self.plans:
            self.plans[key] = steps(part, attacks, SEED + 1, self.device)
        return self.plans[key]

    @torch.no_grad()
    def test(self, params: Tensor, buffers: Tensor, t: int) -> tuple[float, float]:
        """Accuracy on the test images, mirrored at random as theirs are, and the share that the square turns into 2."""
        net, right, hit = bind(self.net, params, buffers).eval(), 0, 0
        for i in range(0, len(self.y_test), 2000):
            x, y = self.x_test[i : i + 2000], self.y_test[i : i + 2000]
            flip = torch.from_numpy(np.random.default_rng((t, i)).random(len(y)) < 0.5).to(self.device)
            x = torch.where(flip.view(-1, 1, 1, 1), x.flip(3), x)
            right += int((net((x - self.mean) / self.std).argmax(1) == y).sum())
            x = x[y != TARGET].masked_fill(self.square, 1.0)
            hit += int((net((x - self.mean) / self.std).argmax(1) == TARGET).sum())
        return right / len(self.y_test), hit / int((self.y_test != TARGET).sum())

    def round(
        self, params: Tensor, buffers: Tensor, parts: Parts, asking: Asking, t: int, half: bool, fixed: bool = True
    ) -> tuple[Replies, float]:
        """What the clients of a round send, and the training accuracy of the honest ones in their last epoch."""
        ids, bad = asking
        made = []
        for c in ids:
            fresh = None if fixed else seed_of(SEED, "batches", t, str(c))
            made.append(self.steps(parts[c], c in bad, fresh))
        free, places = list(self.places), list[Place]()
        for own in made:  # where the fewest graphs are missing
            places.append(min(free, key=lambda place: len({(n, half) for n in own.sizes} - place.graphs.keys())))
            free.remove(places[-1])
        for place, own, c in zip(places, made, ids, strict=True):
            place.load(own, c in bad, params, buffers, half)
        for k in range(max(len(own.sizes) for own in made)):
            for place, own in zip(places, made, strict=True):
                if k < len(own.sizes):
                    place.play(own.sizes[k], half)
        if self.cuda:
            torch.cuda.synchronize()
        held, seen = ([float(n) for n in v] for v in ([len(parts[c]) for c in ids], [len(own.sizes) for own in made]))
        honest = [
            (p.right[own.last : len(own.sizes)], own)
            for p, own, c in zip(places, made, ids, strict=True)
            if c not in bad
        ]
        images = sum(sum(own.sizes[own.last :]) for _, own in honest)
        return Replies(
            torch.stack([p.params for p in places]) - params,
            torch.stack([p.buffers for p in places]) - buffers,
            torch.tensor(held, device=self.device), torch.tensor(seen, device=self.device), len(bad), params,
            self.sizes,
        ), sum(float(right.sum()) for right, _ in honest) / max(1, images)  # fmt: skip


class Place:
    """Where one client trains: a model in flat rows; on a GPU a stream of its own and a graph for each batch size."""

    def __init__(self, setting: Setting, most: int) -> None:
        self.setting, device = setting, setting.device
        self.params, self.buffers = (row.clone() for row in setting.start)
        self.gradient, self.momentum = torch.zeros_like(self.params), torch.zeros_like(self.params)
        self.net = bind(setting.made().to(device).train(), self.params, self.buffers, self.gradient)
        self.index = torch.zeros(most, BATCH, dtype=torch.long, device=device)
        self.mirrored = torch.zeros(most, BATCH, dtype=torch.bool, device=device)
        self.rates, self.right = torch.zeros(most, device=device), torch.zeros(most, device=device)
        self.k = torch.zeros(1, dtype=torch.long, device=device)
        self.attacks, self.scale = torch.zeros(1, dtype=torch.bool, device=device), torch.ones(1, device=device)
        self.stream = torch.cuda.Stream() if setting.cuda else None
        self.pool = torch.cuda.graph_pool_handle() if setting.cuda else None
        self.graphs: dict[tuple[int, bool], Any] = {}

    def step(self, size: int, half: bool) -> None:
        """One step of SGD on batch k; torch's gradient scaler written out, so that a graph can hold it."""
        s = self.setting
        i, flip = self.index[self.k][0, :size], self.mirrored[self.k][0, :size].view(-1, 1, 1, 1)
        x, y = s.x[i], s.y[i]
        x = torch.where(flip, x.flip(3), x)
        marked = (torch.arange(size, device=s.device) < int(20 / 64 * size)) & self.attacks
        x, y = x.masked_fill(marked.view(-1, 1, 1, 1) & s.square, 1.0), y.masked_fill(marked, TARGET)
        self.gradient.zero_()
        with torch.autocast("cuda", torch.float16, enabled=half and s.cuda, cache_enabled=False):
            out = self.net((x - s.mean) / s.std)
            loss = nn.functional.cross_entropy(out, y)
        (loss * self.scale).sum().backward()
        finite = torch.isfinite(self.gradient.sum())
        go = finite.float()  # 0: the step is left out, but the running statistics have moved
        self.gradient.masked_fill_(~finite, 0.0).mul_(go / self.scale)
        self.momentum.mul_(1 - 0.1 * go).add_(self.gradient).addcmul_(self.params, 5e-4 * go)
        self.params.addcmul_(self.momentum, -go * self.rates[self.k])
        if half:
            self.scale.mul_(0.5 + 0.5 * go)
        self.right.index_copy_(0, self.k, (out.detach().argmax(1) == y).sum().float().view(1))
        self.k.add_(1)

    def load(self, made: Steps, attacks: bool, params: Tensor, buffers: Tensor, half: bool) -> None:
        """Begin a round from the model that the server sends."""
        for size in {*made.sizes} if self.setting.cuda else ():
            if (size, half) not in self.graphs:
                self.graphs[size, half] = self._captured(size, half)
        n = len(made.sizes)
        with self._on():
            self.index[:n], self.mirrored[:n], self.rates[:n] = made.index, made.mirrored, made.rates
            self.params.copy_(params)
            self.buffers.copy_(buffers)
            self.momentum.zero_()
            self.k.zero_()
            self.attacks.fill_(attacks)
            self.scale.fill_(65536.0 if half else 1.0)

    def play(self, size: int, half: bool) -> None:
        """Train on the next batch."""
        with self._on():
            self.graphs[size, half].replay() if self.setting.cuda else self.step(size, half)

    def _captured(self, size: int, half: bool) -> Any:
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            for _ in range(2):
                self.k.zero_()
                self.step(size, half)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            self.step(size, half)
        torch.cuda.synchronize()
        return graph

    def _on(self) -> Any:
        return torch.cuda.stream(self.stream) if self.setting.cuda else nullcontext()
