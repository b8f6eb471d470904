"""Jurors: how many attackers the guard excludes for good without labelled data, how soon, and what honest clients lose.

Three clients are jurors. Beside the attackers one honest client holds a class that nobody else has, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedwarden.core.types import RoundRecord
from fedwarden.core.words import count
from fedwarden.store.conclusion import presence
from fedwarden.studies.runner import LATE, Cell, Table, played

from .defences import ATTACKS, SETTINGS, attacks_of, check_data
from .plan import Asked, Plan, check, scenario
from .tables import Results, columns, confidence, markdown, share, write_csv

CLIENTS, OWNER, JURORS = 10, "0", ("7", "8", "9")
PLAIN, GUARD, JURY, PAIRED = "FedAvg", "auto", "auto with jurors", "auto with paired jurors"
DEFENCES: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"preset": "none"},
    GUARD: {"preset": "auto"},
    JURY: {"preset": "auto", "jurors": list(JURORS)},
    PAIRED: {"preset": "auto", "jurors": list(JURORS), "paired": True},
}
TRIED = ("label flip", "half of the labels", "sign flip", "mimic")
NOBODY = "nobody"
MANY = (2, 3)  # attackers
HORIZONS, SEEDS = (20, 60, 200), 6


def plan(asked: Asked) -> Plan:
    """FedAvg, the guard, and the guard with jurors on one model or on two, against each attack."""
    data, seeds, rounds = asked.data or "digits", asked.seeds or SEEDS, asked.rounds or HORIZONS[-1]
    check_data(data)
    check("attack", asked.attack, [NOBODY, *ATTACKS])
    attacks = asked.attack or [NOBODY, *TRIED]
    wanted = cells(range(seeds), attacks, data, rounds)
    command = asked.command("jurors", data=data, seeds=seeds, rounds=rounds)
    return Plan(
        f"jurors-{data}-{rounds}",
        wanted,
        "jurors.md",
        by_attack,
        lambda found: page(found, data, rounds, command),
        run=measure,
        pictures=write,
        tried=[table["scenario"] for _, table in wanted[:1]],
    )


def cells(seeds: Sequence[int], attacks: Sequence[str], data: str, rounds: int) -> list[tuple[Cell, Table]]:
    """All runs, seed by seed; the owner's class is another one for every seed."""
    found: list[tuple[Cell, Table]] = []
    cases = [(attack, f) for attack in attacks for f in ((0,) if attack == NOBODY else MANY)]
    for seed, (attack, f), defence in product(seeds, cases, DEFENCES):
        attackers = [str(i) for i in range(1, 1 + f)]
        partition = {"name": "owner", "label": seed % 10, "owners": [int(OWNER)], "only": True}
        members = {"clients": [int(c) for c in attackers]}
        forged = attacks_of(attack, f) if f else []
        forged = [{**{k: v for k, v in a.items() if k != "share"}, **members} for a in forged]
        own = {"clients": CLIENTS, "partition": partition}
        table = scenario(SETTINGS[data], seed, rounds, DEFENCES[defence], own, forged, group=CLIENTS)
        table["recalls"] = [seed % 10]
        cell = {"attack": attack, "attackers": f, "defence": defence, "seed": seed}
        found.append((cell, {"scenario": table, "attackers": attackers}))
    return found


def measure(table: Table) -> dict[str, Any]:
    """Run one scenario in a workspace of its own and return what is kept of it."""
    return tally(played(table["scenario"]).records, table["attackers"])


def tally(records: Sequence[RoundRecord], attackers: Sequence[str]) -> dict[str, Any]:
    """When each client was excluded for good; and up to each horizon the accuracy, recall and presence by then.

    Presence is the share of the last 20 rounds in which clients were in the model: of attackers, the owner, others.
    """
    first: dict[str, int] = {}
    for record in records:
        first |= {c: record.round for c in record.excluded if c not in first}
    inside = presence(records)
    groups = {
        "attackers": list(attackers),
        "owner": [OWNER],
        "others": [c for c in inside if c not in {OWNER, *attackers}],
    }
    late: dict[str, dict[str, Any]] = {}
    for horizon in (h for h in HORIZONS if h <= len(records)):
        window = records[max(0, horizon - LATE) : horizon]
        late[str(horizon)] = {
            "accuracy": float(np.mean([r.metrics["accuracy"] for r in window])),
            "recall": float(np.mean([r.metrics["class_recall"] for r in window])),
            **{
                name: float(np.mean([inside[c][max(0, horizon - 20) : horizon] for c in members])) if members else None
                for name, members in groups.items()
            },
        }
    return {"excluded": first, "late": late}


def horizons(results: Results) -> list[int]:
    """The horizons that the runs reach."""
    return sorted({int(h) for r in results for h in r["result"]["late"]})


def excluded(results: Results, horizon: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of these runs, how many attackers and how many honest clients are excluded for good by a round, of how many."""
    found = [0, 0]
    for r in results:
        attackers = {str(i) for i in range(1, 1 + r["cell"]["attackers"])}
        for client, t in r["result"]["excluded"].items():
            found[client not in attackers] += t <= horizon
    many = sum(r["cell"]["attackers"] for r in results)
    return (found[0], many), (found[1], CLIENTS * len(results) - many)


HEADER = columns(
    "attack | attackers | guard | rounds | runs | accuracy | recall of the owner's class | attackers in the model | "
    "owner in the model | attackers excluded | honest clients excluded"
)


def rows(results: Results) -> list[list[object]]:
    """One row per attack, number of attackers, guard and horizon, under ``HEADER``."""
    made: list[list[object]] = []
    cases = dict.fromkeys((r["cell"]["attack"], r["cell"]["attackers"]) for r in results)
    for (attack, f), defence, horizon in product(cases, DEFENCES, horizons(results)):
        wanted = {"attack": attack, "attackers": f, "defence": defence}
        found = [r for r in results if all(r["cell"][key] == value for key, value in wanted.items())]
        late = [r["result"]["late"][str(horizon)] for r in found]
        if not late:
            continue
        mean = {name: np.mean([x[name] for x in late]) if late[0][name] is not None else None for name in late[0]}
        caught, honest = excluded(found, horizon)
        made.append(
            [
                attack,
                f,
                defence,
                horizon,
                len(late),
                confidence([x["accuracy"] for x in late]),
                f"{mean['recall']:.2f}",
                "-" if mean["attackers"] is None else f"{mean['attackers']:.2f}",
                f"{mean['owner']:.2f}",
                f"{caught[0]} of {caught[1]}" if f else "-",
                f"{honest[0]} of {honest[1]}",
            ]
        )
    return made


def by_attack(results: Results) -> str:
    """Everything as one table."""
    return markdown(HEADER, rows(results))


def headline(results: Results) -> str:
    """How many attackers and honest clients the jurors had excluded by the end."""
    last, told = horizons(results)[-1], []
    for guard in (JURY, PAIRED):
        caught, honest = excluded([r for r in results if r["cell"]["defence"] == guard], last)
        told.append(f"with {guard}, {share(*caught)} of the attackers and {share(*honest)} of the honest clients")
    return f"Excluded for good within {count(last, 'round')}, with three jurors of ten clients: {'; '.join(told)}."


def write(results: Results, folder: Path) -> list[Path]:
    """The same as a CSV file."""
    return [write_csv(folder / "jurors.csv", (list(HEADER), [[str(v) for v in row] for row in rows(results)]))]


def page(results: Results, data: str, rounds: int, command: str) -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    return f"""# Jurors: {data}

{headline(results)}

```bash
{command}
```

- Ten clients: client 0 alone holds one class and nothing else, clients 1 to 3 attack, clients 7 to 9 are jurors.
- *Accuracy* and *recall* are means over the last {LATE} rounds up to a round, *in the model* over the last 20.

{by_attack(results)}
"""
