"""Adapters of honest clients that train in another way, and of attackers; and ways to combine adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
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
from .tables import columns, confidence, markdown, select, share, write_csv

INPUTS, HIDDEN, CLASSES = 32, 48, 10
CLIENTS, RANK, WIDEST = 8, 8, 16
STEPS, BATCH, SAMPLES, TESTS = 30, 32, 400, 2000
RATE = 0.01
RATES = (0.001, 0.003, RATE)
ROUNDS, SEEDS = 15, 20
PART = 4  # of the seeds: what stands beside the rest
NAMES = ("first.lora_A", "first.lora_B", "second.lora_A", "second.lora_B")
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
    "none": ("none", {}),
    "auto": ("auto", {}),
    "auto, alike": ("auto", {"alike": True}),
}
EXACT, PADDED, DENSE = "exact", "zero padding", "dense"
"""Ways to combine: the sum of products, the mean of factors padded with zeros, and no adapters but all weights."""


def recipes(case: str) -> list[Recipe]:
    """How each client trains."""
    if case == MIXED:
        return [Recipe(rank=rank) for rank in (2, 4, 8, 16)] * (CLIENTS // 4)
    return [{**HONEST, **ATTACKS}[case], *[Recipe()] * (CLIENTS - 1)]


class World:
    """A frozen network of two layers, and clients' samples of one that lies four ranks from it in each layer."""

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
        """Of the factors, or of the whole weights, on test samples."""
        layers = [torch.from_numpy(a).float()[None] for a in model]
        if len(layers) == len(NAMES):
            found = self.logits(self.test[0][None], layers, torch.ones(1, 1, 1))[0]
        else:
            found = forward(self.test[0][None], layers)[0]
        return float((found.argmax(dim=1) == self.test[1]).double().mean())


def forward(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The outputs of n clients' whole weights."""
    return torch.relu(x @ weights[0].mT) @ weights[1].mT


def trained(world: World, own: Sequence[Recipe], starts: Sequence[Arrays], rate: float, seed: int) -> list[Arrays]:
    """What the clients send after their local steps of Adam; all train at once, in factors padded to one rank.

    A row of zeros in A and a column of zeros in B have no gradient, so padding changes nothing. Starts of two arrays
    are whole weights.
    """
    rng, dense = torch.Generator().manual_seed(seed), len(starts[0]) < len(NAMES)
    ranks = [len(start[0]) for start in starts]
    if dense:
        factors = [torch.stack([torch.from_numpy(start[k]) for start in starts]) for k in range(2)]
    else:
        factors = [torch.stack([_padded(start[k], k % 2 == 1) for start in starts]) for k in range(len(NAMES))]
    begin = [f.clone() for f in factors]
    usual = [[rate if dense else rate * r.rates[k % 2] for r in own] for k in range(len(NAMES))]
    rates = [torch.tensor(values)[:, None, None] for values in usual]
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
        outputs = forward(x, leaves) if dense else world.logits(x, leaves, scales)
        loss = F.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="sum") / BATCH
        grads = torch.autograd.grad(loss, leaves)
        factors = []
        for leaf, grad, speed, (mean, square) in zip(leaves, grads, rates, moments, strict=False):
            mean.mul_(0.9).add_(grad, alpha=0.1)
            square.mul_(0.999).addcmul_(grad, grad, value=0.001)
            size = (square / (1 - 0.999**step)).sqrt() + 1e-8
            factors.append(leaf.detach() - speed * mean / (1 - 0.9**step) / size)
    sent: list[Arrays] = []
    for i, recipe in enumerate(own):
        if dense:
            pairs = zip(factors, begin, strict=True)
            sent.append([(2 * old[i] - new[i] if recipe.flip else new[i]).numpy().copy() for new, old in pairs])
            continue
        made: Arrays = []
        for k, (new, old) in enumerate(zip(factors, begin, strict=True)):
            value = new[i][: ranks[i]] / recipe.divide if k % 2 == 0 else new[i][:, : ranks[i]] * recipe.divide
            if recipe.flip:  # the product 2 P - P_i, at twice the rank and so at half the scale
                old_part = old[i][: ranks[i]] if k % 2 == 0 else 4 * old[i][:, : ranks[i]]
                value = torch.cat([old_part, value if k % 2 == 0 else -2 * value], dim=k % 2)
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
    case: str, guard: str, alpha: float | None, seed: int, rounds: int, way: str = EXACT, rate: float = RATE
) -> tuple[list[RoundRecord], list[float], list[float]]:
    """The rounds of one federation, its accuracies, and what the return to the rank has cost in each round."""
    world, own, adapters = World(seed, alpha), recipes(case), Adapters()
    model = [f.numpy().copy() for f in world.frozen] if way == DENSE else world.model
    preset, options = GUARDS[guard]
    warden = Warden.preset(preset, **options, secret=seed).of_products()
    records, accuracies, cuts = [], [], []
    for t in range(1, rounds + 1):
        if way == EXACT:
            starts = [adapters.brought(NAMES, model, [r.rank] * 2, str(i)) for i, r in enumerate(own)]
        else:
            starts = [model if way == DENSE else first_rows(model, r.rank) for r in own]
        sent = trained(world, own, starts, rate, 1000 * seed + t)
        here = [i for i in range(CLIENTS) if warden.asks(str(i))]
        letters = [Sent(str(i), sent[i]) for i in here]
        if way == EXACT:
            folded = adapters.fold(t, letters, NAMES, model, ranges(model), {})
            outcome = warden.step(folded.cohort)
            new, metrics = folded.unfold(outcome.update)
            model = [np.asarray(a, np.float32) for a in new]
            cuts.append(metrics.get(CUT, 0.0))
            records.append(outcome.record)
        elif way == DENSE:
            flat = torch.cat([torch.from_numpy(a).flatten() for a in model])
            rows = [[torch.from_numpy(a) for a in letter.layers] for letter in letters]
            cohort = Cohort(t, [x.client_id for x in letters], Updates.of(rows, flat), [SAMPLES] * len(letters))
            outcome = warden.step(cohort)
            parts = (flat + outcome.update).split([a.size for a in model])
            model = [part.reshape(a.shape).numpy() for part, a in zip(parts, model, strict=True)]
            records.append(outcome.record)
        else:
            model = averaged(sent, [r.rank for r in own])
        accuracies.append(world.accuracy(model))
    return records, accuracies, cuts


def ranges(model: Arrays) -> list[tuple[int, int]]:
    """The columns of each array in the flat model: all are judged."""
    stops = np.cumsum([0, *(a.size for a in model)]).tolist()
    return list(pairwise(stops))


def first_rows(model: Arrays, rank: int) -> Arrays:
    """The model for a client of another rank as HLoRA pads and cuts it, with zeros, at the client's scale."""
    wide = [_padded(a, k % 2 == 1).numpy() for k, a in enumerate(model)]
    return [a[:, :rank] * np.float32(rank / RANK) if k % 2 else a[:rank] for k, a in enumerate(wide)]


def averaged(sent: Sequence[Arrays], ranks: Sequence[int]) -> Arrays:
    """The mean of the factors, padded with zeros and cut to the rank of the model, each B at the model's scale."""
    made: Arrays = []
    for k in range(len(NAMES)):
        scaled = [s[k] * np.float32(RANK / r) if k % 2 else s[k] for s, r in zip(sent, ranks, strict=True)]
        mean = torch.stack([_padded(a, k % 2 == 1) for a in scaled]).mean(dim=0).numpy()
        made.append(mean[:, :RANK] if k % 2 else mean[:RANK])
    return made


def plan(asked: Asked) -> Plan:
    """Every honest difference and every attacker with the guard, and every way to combine without it."""
    check("case", asked.case, [*HONEST, MIXED, *ATTACKS])
    seeds, rounds = asked.seeds or SEEDS, asked.rounds or ROUNDS
    command = asked.command("adapters", seeds=seeds, rounds=rounds)
    return Plan(
        f"adapters-{rounds}",
        cells(seeds, rounds, asked.case or [*HONEST, MIXED, *ATTACKS]),
        "adapters.md",
        headline,
        lambda found: page(found, rounds, command),
        run=measure,
        pictures=pictures,
    )


def cells(seeds: int, rounds: int, cases: Sequence[str]) -> list[tuple[Cell, Table]]:
    """All runs."""
    few = -(-seeds // PART)
    honest = [case for case in cases if case not in ATTACKS]
    found = [(case, "auto", EXACT, RATE, seeds) for case in honest]
    found += [(case, "auto, alike", EXACT, RATE, few) for case in honest]
    curve = product([case for case in cases if case in ATTACKS], (EXACT, DENSE), RATES)
    found += [(case, "auto", way, rate, few) for case, way, rate in curve]
    ways = product([case for case in ("control", MIXED) if case in cases], (EXACT, PADDED))
    found += [(case, "none", way, RATE, few) for case, way in ways]
    runs = [(*rest, seed) for *rest, many in found for seed in range(many)]
    keys = ("case", "guard", "way", "rate", "seed")
    tables = [{**dict(zip(keys, run, strict=True)), "rounds": rounds} for run in runs]
    return [({key: value for key, value in table.items() if key != "rounds"}, table) for table in tables]


def measure(table: Table) -> dict[str, Any]:
    """One run, and what is kept of it."""
    torch.set_num_threads(1)
    case = table["case"]
    records, accuracies, cuts = played(
        case, table["guard"], None, table["seed"], table["rounds"], table["way"], table["rate"]
    )
    odd = {ODD} if case in ATTACKS else set()
    honest = {str(i) for i in range(CLIENTS)} - odd
    out = {c for r in records for c in (*r.excluded, *r.suspended)}
    flags = [{c for c, flag in zip(r.client_ids, r.flagged, strict=True) if flag} for r in records]
    zero = [{c for c, w in zip(r.client_ids, r.weights, strict=True) if not w} for r in records]
    return {
        "honest_out": len(out & honest),
        "honest_skipped": sum(len(z & honest) for z in zero),
        "honest_flagged": sum(len(f & honest) for f in flags),
        "found": next((t for t, f in enumerate(flags, 1) if f & odd), None),
        "flagged": sum(bool(f & odd) for f in flags),
        "late_accuracy": float(np.mean(accuracies[-LATE:])),
        "cut": max(cuts, default=0.0),
    }


def headline(results: Results) -> str:
    """In how many runs an honest client was suspended or excluded, and how many attackers were found."""
    runs = [r for guard in ("auto", "auto, alike") for r in select(results, {"guard": guard, "way": EXACT})]
    hit = sum(r["honest_out"] > 0 for r in runs)
    found = []
    for way in (EXACT, DENSE):
        attacked = [r for case in ATTACKS for r in select(results, {"guard": "auto", "way": way, "case": case})]
        found.append(f"{sum(r['found'] is not None for r in attacked)} of {len(attacked)}")
    return (
        f"An honest client was suspended or excluded in {hit} of {count(len(runs), 'run')} with adapters; {found[0]} "
        f"attackers were found, with full fine-tuning {found[1]}."
    )


def honest(results: Results, rounds: int) -> str:
    """Per difference of an honest client."""
    header = columns(
        "one of eight clients, honest | guard | runs | with an honest client suspended or excluded | "
        f"flagged, of {CLIENTS * rounds} client-rounds | skipped | accuracy"
    )
    rows: list[list[object]] = []
    for case, guard in product((*HONEST, MIXED), ("auto", "auto, alike")):
        found = select(results, {"case": case, "guard": guard, "way": EXACT})
        rates = [[r[key] for r in found] for key in ("honest_flagged", "honest_skipped")]
        means = [f"{np.mean(values):.2f}" if values else "-" for values in rates]
        out = share(sum(r["honest_out"] > 0 for r in found), len(found))
        rows.append([case, guard, len(found), out, *means, confidence([r["late_accuracy"] for r in found])])
    return markdown(header, rows)


HEADER = columns(
    "attacker | trained and sent | rate | runs | found | first in round | rounds flagged | "
    "honest client-rounds flagged | accuracy"
)


def attacked(results: Results) -> list[list[object]]:
    """Per attacker and learning rate, with adapters and with whole weights."""
    rows: list[list[object]] = []
    for case, way, rate in product(ATTACKS, (EXACT, DENSE), RATES):
        found = select(results, {"case": case, "guard": "auto", "way": way, "rate": rate})
        seen = [r["found"] for r in found if r["found"] is not None]
        first = f"{np.median(seen):.0f}" if seen else "-"
        means = [f"{np.mean([r[k] for r in found]):.1f}" if found else "-" for k in ("flagged", "honest_flagged")]
        accuracy = confidence([r["late_accuracy"] for r in found])
        what = "adapters" if way == EXACT else "whole weights"
        rows.append([case, what, f"{rate:g}", len(found), len(seen), first, *means, accuracy])
    return rows


def pictures(results: Results, folder: Path) -> list[Path]:
    """The attackers as CSV."""
    return [
        write_csv(folder / "adapters-rates.csv", (list(HEADER), [[str(x) for x in row] for row in attacked(results)]))
    ]


def combined(results: Results) -> str:
    """Per way to combine, without a guard."""
    header = columns("ranks | combined by | runs | accuracy | largest error of the cut")
    rows: list[list[object]] = []
    for case, way in product(("control", MIXED), (EXACT, PADDED)):
        found = select(results, {"case": case, "guard": "none", "way": way})
        words = "the mean of factors" if way == PADDED and case == "control" else way
        error = f"{max(r['cut'] for r in found):.3f}" if found and way == EXACT else "-"
        ranks = f"all {RANK}" if case == "control" else case
        rows.append([ranks, words, len(found), confidence([r["late_accuracy"] for r in found]), error])
    return markdown(header, rows)


def page(results: Results, rounds: int, command: str) -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    return f"""# Adapters: measured

{headline(results)}

<!-- not run: half an hour on two cores -->
```bash
{command}
```

- {CLIENTS} clients train adapters of rank {RANK} on a frozen network of two layers, {STEPS} steps of Adam at {RATE:g} a
  round, {SAMPLES} samples each, IID, for {count(rounds, "round")}. The network that labelled the samples lies four
  ranks from the frozen one in each layer.
- Shares of runs are in percent, with the 95 % interval (Clopper and Pearson). *Accuracy* is on test samples, averaged
  over the last {LATE} rounds, in percent with the 95 % interval over runs.

## Honest clients that train in another way

{honest(results, rounds)}

## Attackers

One of the eight, at three learning rates. *Whole weights*: the same task with Adam on all weights.
[The same as CSV](adapters-rates.csv)

{markdown(HEADER, attacked(results))}

## Ways to combine, without a guard

*Exact* is the sum of products, brought back to rank {RANK}. *Zero padding* averages factors, with zeros where a client
has a smaller rank, as HLoRA does.

{combined(results)}"""
