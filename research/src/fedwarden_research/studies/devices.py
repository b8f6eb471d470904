"""Thousands of clients that are each seen a few times, such as phones: honest ones, attackers, and ids that change.

Clients hold about 20 images of MNIST each, cut by a Dirichlet draw of .3 for every class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import hypergeom
from torch import Tensor, nn

from fedwarden.core.types import Cohort, Reported
from fedwarden.core.words import count
from fedwarden.sim.data.world import Rows
from fedwarden.sim.evaluation import Evaluation, Lent
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario
from fedwarden.studies.runner import Cell, Table

from .defences import DEFENCES as ALL_DEFENCES
from .plan import Asked, Plan, check
from .tables import Results, confidence, select, write_csv

PLAIN, CLIP, GUARD = "FedAvg", "norm clipping", "auto"
DEFENCES = (PLAIN, CLIP, GUARD)
CLIENTS, ROUNDS, SEEDS = 3400, 1500, 3
EVERY, LATE = 10, 20  # rounds between evaluations, and at the end of a run over which accuracy is averaged
ATTACKS: Mapping[str, Mapping[str, Any]] = {
    "label flip": {"name": "label_flip"},
    "sign flip": {"name": "sign_flip"},
    "scaling": {"name": "scaling"},
    "Min-Max": {"name": "min_max"},
    "MPAF": {"name": "mpaf"},
}
NONE, FRESH = "none", "none, new ids in every round"
BARS = {(50, 0.01): 1.0, (10, 0.1): 5.0, (50, 0.2): 5.0}  # points that attackers may cost: asked, their share
ASKED, SHARES = (10, 20, 50, 100), (0.01, 0.05, 0.1, 0.2, 0.3)


@dataclass(frozen=True)
class Case:
    """How many clients are asked, and what a share of all clients does; under the names of bench and page."""

    asked: int
    attack: str = NONE
    share: float = 0.0

    @property
    def setting(self) -> str:
        return f"{self.asked} asked, {100 * self.share:g} % attackers" if self.share else f"{self.asked} asked"


def cases() -> list[Case]:
    honest = [Case(10), Case(10, FRESH), Case(50)]
    return [*honest, *(Case(asked, attack, share) for asked, share in BARS for attack in ATTACKS)]


def plan(asked: Asked) -> Plan:
    """Every case and guard; FedAvg without attack alone, to compare with."""
    seeds, rounds, clients = asked.seeds or SEEDS, asked.rounds or ROUNDS, [*asked.clients, CLIENTS][0]
    settings = list(dict.fromkeys(case.setting for case in cases()))
    check("defence", asked.defence, DEFENCES)
    check("case", asked.case, settings)
    check("attack", asked.attack, [NONE, FRESH, *ATTACKS])
    known = [
        case
        for case in cases()
        if case.setting in (asked.case or settings) and case.attack in (asked.attack or (NONE, FRESH, *ATTACKS))
    ]
    wanted = cells(range(seeds), known, rounds, clients, asked.defence or DEFENCES)
    command = asked.command("devices", seeds=seeds, rounds=rounds)
    return Plan(
        f"devices-{clients}-{rounds}",
        wanted,
        "devices.md",
        headline,
        lambda found: page(found, rounds, clients, command),
        run=measure,
        pictures=write,
        tried=[table["scenario"] for _, table in wanted[:1]],
    )


def cells(
    seeds: Sequence[int], known: Sequence[Case], rounds: int, clients: int, defences: Sequence[str]
) -> list[tuple[Cell, Table]]:
    """All runs, seed by seed."""
    found: list[tuple[Cell, Table]] = []
    for seed, case, defence in product(seeds, known, defences):
        if (defence != PLAIN or case.attack == NONE) and (defence != CLIP or case.share):
            cell = {"setting": case.setting, "attack": case.attack, "defence": defence, "seed": seed}
            table = {"scenario": scenario_of(case, defence, rounds, clients, seed), "fresh": case.attack == FRESH}
            found.append((cell, table))
    return found


def scenario_of(case: Case, defence: str, rounds: int, clients: int, seed: int) -> dict[str, Any]:
    """The scenario of one run."""
    partition = {"name": "dirichlet", "alpha": 0.3, "smallest": 1}
    return {
        "seed": seed,
        "rounds": rounds,
        "data": {"dataset": "mnist", "clients": clients, "partition": partition},
        "model": {"name": "mlp", "hidden": [64]},
        "train": {
            "lr": 0.05, "epochs": 2, "batch_size": 10, "participation": case.asked / clients, "workers": 1,
            "group": case.asked, "trainer": "stacked",
        },
        "attacks": [{**ATTACKS[case.attack], "share": case.share}] if case.share else [],
        "guard": ALL_DEFENCES[defence](0),
    }  # fmt: skip


class Sparse:
    """Evaluates every tenth round and the last ones."""

    def __init__(self, evaluation: Evaluation, rounds: int) -> None:
        self.evaluation, self.rounds, self.t = evaluation, rounds, 0

    def __call__(self, model: nn.Module, held: Mapping[str, Rows], lent: Lent) -> tuple[dict[str, float], Reported]:
        self.t += 1
        return self.evaluation(model, held, lent) if self.t % EVERY == 0 or self.t > self.rounds - LATE else ({}, {})


class Devices(Federation):
    """A federation whose clients take part under new names in every round, if ``fresh``."""

    def __init__(self, table: Table) -> None:
        super().__init__(load_scenario(table["scenario"]))
        self.fresh = bool(table["fresh"])
        self.sparse = Sparse(self.evaluation, self.scenario.rounds)
        if self.fresh:
            self.warden.admission = replace(self.warden.admission, known=None)

    def evaluate(self, word: object) -> tuple[dict[str, float], Reported]:
        self.model.load_state_dict(self.engine.layout.unflatten(self.params))
        return self.sparse(self.model, {}, self._lent)

    def _cohort(self, t: int, chosen: Sequence[str], models: Tensor, told: Reported) -> Cohort:
        cohort = super()._cohort(t, chosen, models, told)
        return replace(cohort, client_ids=tuple(f"{c}, {t}" for c in chosen)) if self.fresh else cohort


def measure(table: Table) -> dict[str, Any]:
    """Run one cell and return what is kept of it.

    ``longest`` is the longest step of the model in carried median lengths, ``filled`` counts the rounds of which half
    or more are attackers, and ``longest_filled`` is the longest step of those.
    """
    torch.set_num_threads(1)
    federation, sizes = Devices(table), list[float]()

    def publish(t: int, update: Tensor) -> Tensor:
        sizes.append(float(update.norm()))
        return update

    federation.publisher = publish
    records, truth = list(federation.play()), federation.truth
    honest = [np.array([c not in truth for c in r.client_ids], dtype=bool) for r in records]
    steps = [
        s / r.metrics["carried_length"] if "carried_length" in r.metrics else 0.0
        for s, r in zip(sizes, records, strict=True)
    ]
    filled = [2 * int(h.sum()) <= len(h) for h in honest]
    left = sum(int((r.weights[h] == 0).sum()) for r, h in zip(records, honest, strict=True))
    return {
        "late_accuracy": float(np.mean([r.metrics["accuracy"] for r in records[-LATE:]])),
        "left_out": left / max(sum(int(h.sum()) for h in honest), 1),
        "excluded": sum(client not in truth for client in federation.warden.excluded),
        "longest": max(steps),
        "filled": int(sum(filled)),
        "longest_filled": max((s for s, f in zip(steps, filled, strict=True) if f), default=0.0),
    }


def accuracies(results: Results, setting: str, attack: str, defence: str) -> dict[int, float]:
    """The late accuracy by seed, in percent."""
    where = {"setting": setting, "attack": attack, "defence": defence}
    found = {r["cell"]["seed"]: r["result"] for r in results if where.items() <= r["cell"].items()}
    return {int(seed): 100 * r["late_accuracy"] for seed, r in found.items()}


def below(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float | None:
    """How many points ours lie below theirs, on average over the seeds that both have."""
    both = [theirs[seed] - ours[seed] for seed in ours if seed in theirs]
    return float(np.mean(both)) if both else None


HEADER = (
    "setting", "attack", "guard", "runs", "accuracy", "points below FedAvg without attack", "honest replies left out",
    "honest clients excluded", "longest step", "rounds filled by attackers", "longest step in those",
)  # fmt: skip


def rows(results: Results) -> list[list[str]]:
    """One row per case and guard, under ``HEADER``; steps in carried median lengths."""
    made = []
    for case, defence in product(cases(), DEFENCES):
        found = select(results, {"setting": case.setting, "attack": case.attack, "defence": defence})
        if not found:
            continue
        clean = accuracies(results, Case(case.asked).setting, NONE, PLAIN)
        cost = below(accuracies(results, case.setting, case.attack, defence), clean)
        made.append(
            [
                case.setting, case.attack, defence, str(len(found)), confidence([r["late_accuracy"] for r in found]),
                "-" if cost is None else f"{cost:.2f}", f"{100 * np.mean([r['left_out'] for r in found]):.2f} %",
                str(sum(r["excluded"] for r in found)),
                _longest(found, "longest"), str(sum(r["filled"] for r in found)), _longest(found, "longest_filled"),
            ]
        )  # fmt: skip
    return made


def _longest(found: Sequence[Mapping[str, Any]], key: str) -> str:
    most = max(float(r[key]) for r in found)
    return f"{most:.2f}" if most else "-"


def headline(results: Results) -> str:
    """For each bar its worst case."""
    lines = []
    for asked in (10, 50):
        clean = accuracies(results, Case(asked).setting, NONE, PLAIN)
        cost = below(accuracies(results, Case(asked).setting, NONE, GUARD), clean)
        found = select(results, {"setting": Case(asked).setting, "attack": NONE, "defence": GUARD})
        if cost is not None:
            left, gone = 100 * float(np.mean([r["left_out"] for r in found])), sum(r["excluded"] for r in found)
            lines.append(
                f"- {asked} asked, no attack: {cost:.2f} points below FedAvg (bar: .5); {left:.2f} % of honest replies "
                f"left out (bar: 2), {count(gone, 'honest client')} excluded (bar: 0)."
            )
    stable = accuracies(results, Case(10).setting, NONE, GUARD)
    cost = below(accuracies(results, Case(10, FRESH).setting, FRESH, GUARD), stable)
    if cost is not None:
        lines.append(f"- New ids in every round: {cost:.2f} points below stable ids (bar: .5).")
    for (asked, share), bar in BARS.items():
        clean, setting = accuracies(results, Case(asked).setting, NONE, PLAIN), Case(asked, "", share).setting
        costs = {a: below(accuracies(results, setting, a, GUARD), clean) for a in ATTACKS}
        beside = {
            a: below(accuracies(results, setting, a, GUARD), accuracies(results, setting, a, CLIP)) for a in ATTACKS
        }
        known = {a: c for a, c in costs.items() if c is not None}
        if known:
            worst = max(known, key=lambda attack: known[attack])
            least = max((b for b in beside.values() if b is not None), default=0.0)
            steps = max(r["longest"] for r in select(results, {"setting": setting, "defence": GUARD}))
            lines.append(
                f"- {setting}: at most {known[worst]:.2f} points below FedAvg without attack (bar: {bar:g}), {worst};"
                f" at most {least:.2f} below norm clipping (bar: .5); the longest step is {steps:.2f} carried median "
                "lengths (bar: 1.5)."
            )
    return "\n".join(lines)


def write(results: Results, folder: Path) -> list[Path]:
    """The runs, and the chances of a round that attackers fill, as CSV files."""
    made = [write_csv(folder / "devices.csv", (list(HEADER), rows(results)))] if results else []
    return [*made, write_csv(folder / "devices-chances.csv", chances())]


def filled(clients: int, attackers: int, asked: int) -> float:
    """The chance that attackers are half or more of a round's clients, drawn at random.

        P(X >= ceil(k / 2)),   X hypergeometric: k of n clients of which f attack

    >>> round(filled(10, 5, 2), 4)  # not both honest: 1 - 5/10 4/9
    0.7778
    """
    return float(hypergeom.sf((asked + 1) // 2 - 1, clients, attackers, asked))


def chances(clients: int = CLIENTS) -> tuple[list[str], list[list[str]]]:
    """The chance of such a round by the number of clients asked and the share of attackers."""
    header = ["asked", *(f"{100 * share:g} % attackers" for share in SHARES)]
    return header, [[str(k), *(f"{filled(clients, round(s * clients), k):.1e}" for s in SHARES)] for k in ASKED]


def page(results: Results, rounds: int, clients: int, command: str) -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    return f"""# Many clients, each seen a few times

{headline(results)}

<!-- not run: hours -->
```bash
{command}
```

- {clients:,} clients hold the 60,000 images of MNIST, cut by a Dirichlet draw of .3 for every class; {rounds} rounds.
  *Accuracy* is the mean of the last {LATE} rounds on the 10,000 test images, in percent with its 95 % interval over
  seeds.
- *Longest step* is how far one round moved the model, in median lengths carried from earlier rounds; the first rounds,
  before any is carried, do not count. *Rounds filled by attackers* are those of which they are half or more.

[All cases](devices.csv)

The chance of a round that attackers fill, of {CLIENTS:,} clients:

[Chances](devices-chances.csv)"""
