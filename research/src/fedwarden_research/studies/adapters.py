"""Adapters of honest clients that train in another way, and of attackers; and ways to combine adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedwarden import Cohort, Updates, Warden
from fedwarden.core.types import RoundRecord
from fedwarden.core.words import count
from fedwarden.guard.adapters import CUT, Adapters
from fedwarden.studies.runner import LATE, Cell, Table

from .plan import Asked, Plan, check
from .tables import columns, confidence, markdown, select, share

INPUTS, HIDDEN, CLASSES = 32, 48, 10
CLIENTS, RANK, WIDEST = 8, 8, 16
STEPS, BATCH, SAMPLES, TESTS = 30, 32, 400, 2000
RATE, DENSE_RATE = 0.01, 0.002
ROUNDS, SEEDS, COMBINED_SEEDS = 20, 20, 5
NAMES = ("first.lora_A", "first.lora_B", "second.lora_A", "second.lora_B")
EVERYTHING = ((0, 1 << 40),)
ODD = "0"  # the client that is unlike the others

Arrays = list[NDArray[Any]]
Results = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """How a client trains and what it sends: its rank, its rates for A and B over the usual one, and what it forges."""

    rank: int = RANK
    rates: tuple[float, float] = (1.0, 1.0)
    divide: float = 1.0  # A, and B times it, before they are sent
    labels: str = ""
    flip: bool = False


HONEST = {
    "control": Recipe(),
    "rank 2": Recipe(rank=2),
    "rank 16": Recipe(rank=16),
    "LoRA+ (A's rate / 4, B's x 4)": Recipe(rates=(0.25, 4.0)),
    "frozen A": Recipe(rates=(0.0, 1.0)),
    "rescaled (A / 3, 3 B)": Recipe(divide=3.0),
}
MIXED = "ranks 2, 4, 8 and 16"
ATTACKS = {
    "label flip": Recipe(labels="flipped"),
    "labels replaced": Recipe(labels="random"),
    "sign flip": Recipe(flip=True),
}
GUARDS: Mapping[str, tuple[str, dict[str, object]]] = {
    "auto": ("auto", {}),
    "auto, alike": ("auto", {"alike": True}),
    "pid-made": ("pid_made", {}),
}
WAYS = ("exact", "zero padding", "naive")
"""Sums of products, or means of factors, padded with zeros where they are of a smaller rank; naive: of one rank."""


def recipes(case: str) -> list[Recipe]:
    """How each client trains."""
    if case == MIXED:
        return [Recipe(rank=rank) for rank in (2, 4, 8, 16)] * (CLIENTS // 4)
    return [{**HONEST, **ATTACKS}[case], *[Recipe()] * (CLIENTS - 1)]


class World:
    """A frozen network of two layers, and clients' samples of another one that lies four ranks from it in each layer."""

    def __init__(self, seed: int, alpha: float | None) -> None:
        rng = np.random.default_rng(seed)
        sizes = ((HIDDEN, INPUTS), (CLASSES, HIDDEN))

        def normal(*shape: int) -> Tensor:
            return torch.from_numpy(rng.standard_normal(shape)).float()

        self.frozen = [normal(*size) / size[1] ** 0.5 for size in sizes]
        right = [w + normal(len(w), 4) @ normal(4, w.shape[1]) / w.shape[1] ** 0.5 for w in self.frozen]
        x = normal(8 * CLIENTS * SAMPLES + TESTS, INPUTS)
        y = (torch.relu(x @ right[0].T) @ right[1].T).argmax(dim=1)
        self.test, pool = (x[:TESTS], y[:TESTS]), np.arange(TESTS, len(x))
        picked = []
        for _ in range(CLIENTS):
            shares = np.ones(CLASSES) if alpha is None else rng.dirichlet(np.full(CLASSES, alpha)) + 1e-6
            weights = shares[y[pool].numpy()]
            picked.append(rng.choice(pool, SAMPLES, replace=False, p=weights / weights.sum()))
        self.x, self.y = x[np.stack(picked)], y[np.stack(picked)]
        self.model: Arrays = []
        for size in sizes:
            a = (rng.random((RANK, size[1])) * 2 - 1) / size[1] ** 0.5
            self.model += [a.astype(np.float32), np.zeros((size[0], RANK), np.float32)]

    def logits(self, x: Tensor, factors: Sequence[Tensor], scales: Tensor) -> Tensor:
        """The outputs (n, k, CLASSES) of n clients' adapters for their inputs (n, k, INPUTS)."""
        for i, frozen in enumerate(self.frozen):
            a, b = factors[2 * i : 2 * i + 2]
            x = x @ frozen.T + scales * ((x @ a.mT) @ b.mT)
            x = torch.relu(x) if i == 0 else x
        return x

    def accuracy(self, model: Sequence[NDArray[Any]]) -> float:
        """Of a model of adapters, on test samples."""
        factors = [torch.from_numpy(a).float()[None] for a in model]
        found = self.logits(self.test[0][None], factors, torch.ones(1, 1, 1))[0]
        return float((found.argmax(dim=1) == self.test[1]).double().mean())


def trained(world: World, own: Sequence[Recipe], starts: Sequence[Arrays], seed: int) -> list[Arrays]:
    """What the clients send after their local steps of Adam; all train at once, in factors padded to one rank.

    A row of zeros in A and a column of zeros in B have no gradient, so padding changes nothing.
    """
    rng = torch.Generator().manual_seed(seed)
    ranks = [len(start[0]) for start in starts]
    factors = [torch.stack([_padded(start[k], k % 2 == 1) for start in starts]) for k in range(len(NAMES))]
    begin = [f.clone() for f in factors]
    rates = [torch.tensor([r.rates[k % 2] for r in own])[:, None, None] * RATE for k in range(len(NAMES))]
    scales = torch.tensor([RANK / rank for rank in ranks])[:, None, None]
    labels = world.y.clone()
    for i, recipe in enumerate(own):
        if recipe.labels == "flipped":
            labels[i] = CLASSES - 1 - labels[i]
        elif recipe.labels == "random":
            labels[i] = torch.randint(0, CLASSES, labels[i].shape, generator=rng)
    moments = [(torch.zeros_like(f), torch.zeros_like(f)) for f in factors]
    for step in range(1, STEPS + 1):
        index = torch.randint(0, SAMPLES, (len(own), BATCH), generator=rng)
        x, y = (v[torch.arange(len(own))[:, None], index] for v in (world.x, labels))
        leaves = [f.requires_grad_() for f in factors]
        loss = F.cross_entropy(world.logits(x, leaves, scales).flatten(0, 1), y.flatten(), reduction="sum") / BATCH
        grads = torch.autograd.grad(loss, leaves)
        factors = []
        for leaf, grad, rate, (mean, square) in zip(leaves, grads, rates, moments, strict=True):
            mean.mul_(0.9).add_(grad, alpha=0.1)
            square.mul_(0.999).addcmul_(grad, grad, value=0.001)
            size = (square / (1 - 0.999**step)).sqrt() + 1e-8
            factors.append(leaf.detach() - rate * mean / (1 - 0.9**step) / size)
    sent = []
    for i, recipe in enumerate(own):
        made: Arrays = []
        for k, (new, old) in enumerate(zip(factors, begin, strict=True)):
            value = 2 * old[i] - new[i] if recipe.flip else new[i]
            value = value[: ranks[i]] / recipe.divide if k % 2 == 0 else value[:, : ranks[i]] * recipe.divide
            made.append(value.numpy().copy())
        sent.append(made)
    return sent


def _padded(factor: NDArray[Any], second: bool) -> Tensor:
    wide = np.zeros((len(factor), WIDEST) if second else (WIDEST, factor.shape[1]), np.float32)
    wide[tuple(slice(0, size) for size in factor.shape)] = factor
    return torch.from_numpy(wide)


@dataclass(frozen=True, eq=False)
class Sent:
    """A reply."""

    client_id: str
    layers: Arrays
    count: float = SAMPLES


def played(
    case: str, guard: str, alpha: float | None, seed: int, rounds: int, way: str = "exact"
) -> tuple[list[RoundRecord], list[float], list[float]]:
    """The rounds of one federation, its accuracies, and what the return to the rank has cost in each round."""
    world, own, adapters = World(seed, alpha), recipes(case), Adapters()
    model = world.model
    preset, options = GUARDS.get(guard, ("none", {}))
    warden = adapters.guarding(Warden.preset(preset, **options, secret=seed))
    records, accuracies, cuts = [], [], []
    for t in range(1, rounds + 1):
        here = [i for i in range(CLIENTS) if warden.asks(str(i))]
        starts = [adapters.brought(NAMES, model, [own[i].rank] * 2, str(i)) for i in here] if way == "exact" else [
            [_padded(a, k % 2 == 1).numpy()[: own[i].rank] if k % 2 == 0 else
             _padded(a, True).numpy()[:, : own[i].rank] * (own[i].rank / RANK) for k, a in enumerate(model)]
            for i in here
        ]
        some = World.__new__(World)
        some.__dict__.update(world.__dict__, x=world.x[here], y=world.y[here])
        sent = trained(some, [own[i] for i in here], starts, 1000 * seed + t)
        if way != "exact":
            model = averaged(sent, [own[i].rank for i in here])
        else:
            letters = [Sent(str(i), layers) for i, layers in zip(here, sent, strict=True)]
            folded = adapters.fold(t, letters, NAMES, model, EVERYTHING, {})
            outcome = warden.step(folded.cohort)
            new, metrics = folded.unfold(outcome.update)
            model = [np.asarray(a, np.float32) for a in new]
            records.append(outcome.record)
            cuts.append(metrics.get(CUT, 0.0))
        accuracies.append(world.accuracy(model))
    return records, accuracies, cuts


def averaged(sent: Sequence[Arrays], ranks: Sequence[int]) -> Arrays:
    """The mean of the factors, padded with zeros and cut to the rank of the model, each B at the model's scale."""
    made: Arrays = []
    for k in range(len(NAMES)):
        scaled = [s[k] * (RANK / r) if k % 2 else s[k] for s, r in zip(sent, ranks, strict=True)]
        mean = torch.stack([_padded(a, k % 2 == 1) for a in scaled]).mean(dim=0).numpy()
        made.append(mean[:, :RANK] if k % 2 else mean[:RANK])
    return made
