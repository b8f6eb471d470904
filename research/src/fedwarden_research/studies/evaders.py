"""Attackers that come and go, drift, forge buffers or change names; and four real sites of which one flips its labels.

Each case is compared with FedAvg where nobody attacks. The server has 100 labelled samples in every run, of which only
``auto with probe`` makes use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedwarden.core.types import Cohort, Reported, RoundRecord
from fedwarden.core.words import count
from fedwarden.guard.containment import KNOWN
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import Scenario, load_scenario
from fedwarden.studies.runner import LATE, Cell, Table

from .defences import DEFENCES as ALL_DEFENCES
from .defences import PROBED, RESERVE, SETTINGS
from .different import STATIONS, at_hand
from .plan import Asked, Plan, check
from .tables import Results, confidence, select, write_csv

PLAIN, GUARD = "FedAvg", "auto"
DEFENCES = (PLAIN, GUARD, PROBED, "median")
ROUNDS, SEEDS = 60, 5
DEVIATIONS = 6.0
FIRST = 10  # rounds in which a client that changes its name is as new as all others
SITES = 4


def normed_mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer with BatchNorm, whose running statistics are buffers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, classes)
    )


@dataclass(frozen=True)
class Group:
    """Cases in one setting, and what their bar is: the most points of accuracy that they may cost ``guard``."""

    name: str
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    bar: float
    guard: str = GUARD


@dataclass(frozen=True)
class Case:
    """What some clients of a group do.

    ``names`` is after how many rounds the attackers take new names, ``off`` how many standard deviations of the honest
    clients' buffers theirs lie above them; an attacker that is ``absent`` never takes part.
    """

    group: str
    name: str
    attackers: int = 0
    attack: Mapping[str, Any] | None = None
    names: int = 0
    off: float = 0.0
    absent: bool = False


_DIGITS = SETTINGS["digits"]
_TWENTY = {**_DIGITS["data"], "clients": 20, "partition": {"name": "dirichlet", "alpha": 0.5}}
GROUPS = {
    group.name: group
    for group in (
        Group("on-off and drift", _TWENTY, _DIGITS["model"], _DIGITS["train"], 0.03),
        Group("new names", _TWENTY, _DIGITS["model"], _DIGITS["train"], 0.03),
        Group(
            "buffers",
            {**_DIGITS["data"], "clients": 10, "partition": {"name": "dirichlet", "alpha": 0.1}},
            {"name": f"{__name__}:normed_mlp"},
            {**_DIGITS["train"], "smallest_batch": 2},
            0.02,
        ),
        Group("four sites", {**STATIONS["data"], "clients": SITES}, STATIONS["model"], STATIONS["train"], 0.0, PROBED),
    )
}
HONEST, FLIPS, LEFT_OUT = "no attack", "one site flips its labels", "that site is left out"
_FLIP, _TRIPLE = {"name": "label_flip"}, {"name": "sign_flip", "scale": 3.0}


def cases(rounds: int) -> list[Case]:
    """All cases; a drift takes two thirds of the rounds."""
    turning: dict[str, Mapping[str, Any]] = {
        "sign flip x3, 2 rounds on and 2 off": {**_TRIPLE, "on": 2, "off": 2},
        "sign flip x3, 5 rounds off and 5 on": {**_TRIPLE, "start": 6, "on": 5, "off": 5},
        "label flip, 5 rounds off and 5 on": {**_FLIP, "start": 6, "on": 5, "off": 5},
        "sign flip x3, slow drift": {**_TRIPLE, "ramp": round(2 * rounds / 3)},
        "label flip, slow drift": {**_FLIP, "ramp": round(2 * rounds / 3)},
    }
    renamed: dict[str, Mapping[str, Any]] = {"sign flip x3": _TRIPLE, "label flip": _FLIP}
    return [
        Case("on-off and drift", HONEST),
        *(
            Case("on-off and drift", f"{name}, {f} of 20", f, attack)
            for (name, attack), f in product(turning.items(), (2, 5, 8))
        ),
        Case("new names", HONEST),
        *(
            Case("new names", f"{name}, {f} of 20, a new name every {period} rounds", f, attack, names=period)
            for (name, attack), f, period in product(renamed.items(), (2, 5), (KNOWN, 5))
        ),
        Case("buffers", HONEST),
        *(Case("buffers", f"{DEVIATIONS:g} deviations off, {f} of 10", f, off=DEVIATIONS) for f in (1, 3, 4)),
        Case("four sites", HONEST),
        Case("four sites", FLIPS, 1, _FLIP),
        Case("four sites", LEFT_OUT, 1, absent=True),
    ]


def plan(asked: Asked) -> Plan:
    """Every case and guard."""
    seeds, rounds = asked.seeds or SEEDS, asked.rounds or ROUNDS
    check("defence", asked.defence, DEFENCES)
    check("case", asked.case, list(GROUPS))
    chosen = [g for g in GROUPS if not asked.case or g in asked.case]
    left = [] if at_hand(STATIONS["data"]["dataset"]["file"]) else [g for g in chosen if g == "four sites"]
    defences = [d for d in DEFENCES if d == PLAIN or not asked.defence or d in asked.defence]
    wanted = cells(range(seeds), rounds, [g for g in chosen if g not in left], defences)
    skipped = "Skipped: four sites. There is no file of their data in any data folder." if left else ""
    command = asked.command("evaders", seeds=seeds, rounds=rounds)
    return Plan(
        f"evaders-{rounds}",
        wanted,
        "evaders.md",
        lambda found: "\n\n".join(filter(None, [skipped, headline(found)])),
        lambda found: page(found, rounds, command, skipped),
        run=measure,
        pictures=write,
        tried=[table["scenario"] for _, table in wanted[:1]],
    )


def cells(
    seeds: Sequence[int], rounds: int, groups: Sequence[str] = tuple(GROUPS), defences: Sequence[str] = DEFENCES
) -> list[tuple[Cell, Table]]:
    """All runs, seed by seed."""
    found: list[tuple[Cell, Table]] = []
    for seed, case, defence in product(seeds, [c for c in cases(rounds) if c.group in groups], defences):
        cell = {"group": case.group, "case": case.name, "defence": defence, "seed": seed}
        table = {
            "scenario": scenario_of(case, defence, rounds, seed),
            "attackers": _members(case, seed),
            "names": case.names,
            "off": case.off,
        }
        found.append((cell, table))
    return found


def _members(case: Case, seed: int) -> list[int]:
    """The positions of the attackers; of the sites another one for every seed."""
    return [seed % SITES] if case.group == "four sites" and case.attackers else list(range(case.attackers))


def scenario_of(case: Case, defence: str, rounds: int, seed: int) -> dict[str, Any]:
    """The scenario of one run; the sites are four of twelve, others for every seed."""
    group, members = GROUPS[case.group], _members(case, seed)
    data = {**group.data, "reserve": RESERVE, "probe": RESERVE * (defence == PROBED)}
    if case.group == "four sites":
        data["partition"] = {"name": "given", "first": seed % 9}
    if case.absent:
        data["joins"] = {str(i): rounds + 1 for i in members}
    return {
        "seed": seed,
        "rounds": rounds,
        "data": data,
        "model": group.model,
        "train": {**group.train, "group": 10, "workers": 1},
        "attacks": [{**case.attack, "clients": members}] if case.attack else [],
        "guard": ALL_DEFENCES[defence](case.attackers),
    }


class Evaded(Federation):
    """A federation whose attackers forge their buffers or take new names every few rounds."""

    def __init__(self, scenario: Scenario, attackers: Sequence[int], names: int, off: float) -> None:
        super().__init__(scenario)
        self.evading, self.names, self.off = {self.clients[i] for i in attackers}, names, off
        if names:
            self.warden.admission = replace(self.warden.admission, known=None)

    def _cohort(self, t: int, chosen: Sequence[str], models: Tensor, told: Reported) -> Cohort:
        mine = [i for i, client in enumerate(chosen) if client in self.evading]
        if self.off and mine:
            others = [i for i in range(len(chosen)) if i not in mine]
            for name, a, b in self.engine.layout.ranges():
                if name.endswith(("running_mean", "running_var")):
                    honest = models[others, a:b]
                    models[mine, a:b] = honest.mean(dim=0) + self.off * honest.std(dim=0)
        cohort = super()._cohort(t, chosen, models, told)
        return replace(cohort, client_ids=tuple(self.name(client, t) for client in chosen))

    def name(self, client: str, t: int) -> str:
        """Under which name a client takes part in round t."""
        return f"{client}, name {(t - 1) // self.names + 1}" if self.names and client in self.evading else client


def measure(table: Table) -> dict[str, Any]:
    """Run one cell and return what is kept of it."""
    torch.set_num_threads(1)
    federation = Evaded(load_scenario(table["scenario"]), table["attackers"], table["names"], table["off"])
    return tally(list(federation.play()), {federation.clients[i] for i in table["attackers"]})


def tally(records: Sequence[RoundRecord], attackers: set[str]) -> dict[str, Any]:
    """The late accuracy; and what the attackers hold together after the first rounds, in shares of a median client."""
    held = []
    for record in records[FIRST:]:
        mine = np.array([client.partition(", name ")[0] in attackers for client in record.client_ids], dtype=bool)
        honest = record.weights[~mine]
        if mine.any() and honest.any():
            held.append(float(record.weights[mine].sum() / np.median(honest[honest > 0])))
    return {
        "late_accuracy": float(np.mean([r.metrics["accuracy"] for r in records[-LATE:]])),
        "held": float(np.mean(held)) if held else None,
    }


def _accuracies(results: Results, group: str, case: str, defence: str) -> list[float]:
    return [r["late_accuracy"] for r in select(results, {"group": group, "case": case, "defence": defence})]


def costs(results: Results, group: str, case: str, defence: str) -> float | None:
    """How much accuracy a case costs with a guard, compared with FedAvg where nobody attacks."""
    clean, mine = _accuracies(results, group, HONEST, PLAIN), _accuracies(results, group, case, defence)
    return float(np.mean(clean) - np.mean(mine)) if clean and mine else None


def won(results: Results, defence: str) -> float | None:
    """What a guard wins over FedAvg where one site flips its labels, as a part of what leaving that site out wins."""
    plain, best, mine = (
        _accuracies(results, "four sites", case, d) for case, d in ((FLIPS, PLAIN), (LEFT_OUT, PLAIN), (FLIPS, defence))
    )
    if not plain or not best or not mine or np.mean(best) == np.mean(plain):
        return None
    return float((np.mean(mine) - np.mean(plain)) / (np.mean(best) - np.mean(plain)))


def _attacked(results: Results, group: str) -> list[str]:
    found = dict.fromkeys(r["cell"]["case"] for r in results if r["cell"]["group"] == group)
    return [case for case in found if case not in (HONEST, LEFT_OUT)]


def held(results: Results, case: str, defence: str) -> float | None:
    """What attackers under new names hold together on average over runs, in shares of a median client."""
    found = [r["held"] for r in select(results, {"group": "new names", "case": case, "defence": defence})]
    return float(np.mean(found)) if found and None not in found else None


def headline(results: Results) -> str:
    """Per group the worst case with the guard that its bar is for."""
    lines = []
    for group in GROUPS.values():
        found = {case: costs(results, group.name, case, group.guard) for case in _attacked(results, group.name)}
        known = {case: cost for case, cost in found.items() if cost is not None}
        if not known:
            continue
        if group.name == "four sites":
            part = won(results, group.guard)
            if part is not None:
                lines.append(
                    f"- Four sites, one flips its labels: `{group.guard}` wins {100 * part:.0f} % of what leaving that "
                    f"site out wins (bar: 50): {'met' if part >= 0.5 else 'missed'}."
                )
            continue
        if group.name == "new names":
            shares = {case: held(results, case, GUARD) for case in known if case.endswith(f"every {KNOWN} rounds")}
            most = max((s for s in shares.values() if s is not None), default=None)
            if most is not None:
                lines.append(
                    f"- New names every {KNOWN} rounds: the attackers hold {most:.2f} median shares together at most "
                    f"(bar: 1): {'met' if most <= 1 else 'missed'}."
                )
            continue
        worst = max(known, key=lambda case: known[case])
        lines.append(
            f"- {group.name.capitalize()}: `{group.guard}` is at most {100 * known[worst]:.1f} points below FedAvg "
            f"without attack (bar: {100 * group.bar:g}): {'met' if known[worst] <= group.bar else 'missed'}; the "
            f"worst case is {worst}."
        )
    return "\n".join(lines)


HEADER = ("setting", "case", "guard", "runs", "accuracy", "points below no attack", "median shares of the attackers")


def rows(results: Results, group: str | None = None) -> list[list[str]]:
    """One row per case and guard, of one group or of all, under ``HEADER``."""
    made = []
    places = dict.fromkeys((r["cell"]["group"], r["cell"]["case"]) for r in results)
    for (where, case), defence in product(places, DEFENCES):
        found = select(results, {"group": where, "case": case, "defence": defence})
        if not found or group not in (None, where):
            continue
        cost, share = costs(results, where, case, defence), [r["held"] for r in found if r["held"] is not None]
        made.append(
            [
                where, case, defence, str(len(found)), confidence([r["late_accuracy"] for r in found]),
                "-" if cost is None else f"{100 * cost:.1f}", f"{np.mean(share):.2f}" if share else "-",
            ]
        )  # fmt: skip
    return made


def write(results: Results, folder: Path) -> list[Path]:
    """The same as a CSV file."""
    return [write_csv(folder / "evaders.csv", (list(HEADER), rows(results)))] if results else []


def page(results: Results, rounds: int, command: str, skipped: str = "") -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    note = f"\n\n{skipped}" if skipped else ""
    return f"""# Attackers that evade

{headline(results)}{note}

<!-- not run: an hour on two cores -->
```bash
{command}
```

- {count(rounds, "round").capitalize()}. *Accuracy* is the mean of the last {LATE} rounds, in percent with its 95 %
  interval over seeds; *points below no attack* compares it with FedAvg without attack.
- *Median shares* are the weight of all attackers together, in weights of the median honest client in the model, on
  average over the rounds after the first {FIRST}.
- *On-off and drift*, *new names*: digits, 20 clients, Dirichlet 0.5. *Buffers*: digits, ten clients, Dirichlet 0.1, a
  fully connected model with BatchNorm; the attackers train as others do, and send running means and variances that lie
  {DEVIATIONS:g} standard deviations of the honest clients' above their mean. *Four sites*: four stations of Beijing,
  others for every seed.
- The server has {RESERVE} labelled samples, of which only `{PROBED}` makes use.

[All cases](evaders.csv)"""
