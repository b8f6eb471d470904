"""What secure aggregation in groups costs the guard: attackers found and honest updates lost, by size of the groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any, cast

import numpy as np

from fedwarden.core.types import RoundRecord
from fedwarden.core.words import count
from fedwarden.guard.grouped import Grouped
from fedwarden.guard.groups import Evidence, Groups
from fedwarden.guard.warden import Warden
from fedwarden.sim.federation import Federation
from fedwarden.sim.metrics import detection
from fedwarden.sim.scenario import load_scenario
from fedwarden.studies.runner import LATE, Cell, Table, played

from .defences import CLIENTS, SETTINGS, check_data
from .plan import Asked, Plan, check, division, scenario
from .tables import Grid, Result, columns, confidence, markdown, median_of, select, write_csv

NONE = "none"
ATTACKS = ("sign_flip", "label_flip", "alie")
SIZES, FS, ALPHAS = (1, 2, 3, 5), (2, 4), (None, 0.5)
ROUNDS, SEEDS = 30, 3
CSV = "secure-aggregation.csv"

Results = Sequence[Mapping[str, Any]]


def plan(asked: Asked) -> Plan:
    """Every attack, number of attackers, division of the data and size of the groups."""
    data, seeds, rounds = asked.data or "digits", asked.seeds or SEEDS, asked.rounds or ROUNDS
    check_data(data)
    check("attack", asked.attack, [NONE, *ATTACKS])
    wanted = cells(range(seeds), data, rounds, asked.attack or (NONE, *ATTACKS))
    command = asked.command("groups", data=data, seeds=seeds, rounds=rounds)
    return Plan(
        f"groups-{data}-{rounds}",
        wanted,
        "secure-aggregation.md",
        headline,
        lambda found: page(found, data, seeds, rounds, command),
        run=measure,
        pictures=lambda found, folder: [write_csv(folder / CSV, grid(found))],
        tried=[table["scenario"] for _, table in wanted[:1]],
    )


def cells(seeds: Sequence[int], data: str, rounds: int, attacks: Sequence[str]) -> list[tuple[Cell, Table]]:
    """All runs, seed by seed."""
    found: list[tuple[Cell, Table]] = []
    for seed, alpha, attack, size in product(seeds, ALPHAS, attacks, SIZES):
        for f in (0,) if attack == NONE else FS:
            own = {"clients": CLIENTS, "partition": division(alpha)}
            attackers = [{"name": attack, "count": f}] if f else []
            table = scenario(SETTINGS[data], seed, rounds, {"preset": "groups"}, own, attackers)
            cell = {"alpha": alpha, "attack": attack, "attackers": f, "size": size, "seed": seed}
            found.append((cell, {"scenario": table, "size": size}))
    return found


def measure(table: Table) -> dict[str, Any]:
    """Run one scenario with its guard behind groups and return what is kept of it."""
    scenario = load_scenario(table["scenario"])
    held: list[Grouped] = []

    def hide(_: int, federation: Federation) -> None:
        held.append(Grouped(federation.warden, Groups(table["size"], scenario.seed)))
        federation.warden = cast(Warden, held[0])

    records = played(table["scenario"], hide).records
    truth = scenario.truth()
    caught = detection(records, truth)
    late = float(np.mean([r.metrics["accuracy"] for r in records[-LATE:]]))
    return {
        "late_accuracy": late,
        "attackers": len(truth),
        "caught": len(caught.caught),
        "last_catch": max(caught.rounds_to_detection.values()) if len(caught.caught) == len(truth) > 0 else None,
        "wronged": len(caught.wronged),
        **kept_out(records, truth),
        **flag_rates(held[0].evidence, truth),
    }


def kept_out(records: Sequence[RoundRecord], attackers: Collection[str]) -> dict[str, float]:
    """How many updates of attackers were not in the model, and of honest clients that were asked; shares of all."""
    bad = good = lost = 0
    for record in records:
        inside = dict(zip(record.client_ids, record.weights.tolist(), strict=True))
        bad += sum(inside.get(c, 0.0) == 0 for c in attackers)
        good += len(set(inside) - set(attackers))
        lost += sum(weight == 0 for c, weight in inside.items() if c not in attackers)
    return {"kept_out": bad / max(1, len(attackers) * len(records)), "lost": lost / max(1, good)}


def flag_rates(evidence: Evidence, attackers: Collection[str]) -> dict[str, int]:
    """How many groups without an attacker there were, and how many of them were flagged."""
    clean = [flag for round in evidence.rounds for group, flag in round if not set(group) & set(attackers)]
    return {"clean_groups": len(clean), "clean_flagged": sum(clean)}


def headline(results: Results) -> str:
    """Per size: how many of the attackers that flip were found, and how many honest clients were excluded."""
    parts = []
    for size in SIZES:
        flips = [r for attack in ATTACKS[:2] for r in select(results, {"size": size, "attack": attack})]
        every = select(results, {"size": size})
        if flips:
            caught, all_ = sum(r["caught"] for r in flips), sum(r["attackers"] for r in flips)
            wronged = sum(r["wronged"] for r in every)
            parts.append(f"{caught} of {all_} with groups of {size} (and {count(wronged, 'honest client')})")
    return f"Of the clients that flip signs or labels `auto` excluded {', '.join(parts)}." if parts else "Nothing ran."


def grid(results: Results) -> Grid:
    """One row per division, attack, number of attackers and size."""
    header = columns(
        "division | attack | attackers of 20 | group size | attackers excluded | all of them by round | "
        "their updates kept out, % | honest clients excluded | honest updates lost, % | "
        "groups without attacker flagged, % | accuracy"
    )
    rows = []
    for alpha, attack in product(ALPHAS, (NONE, *ATTACKS)):
        for f, size in product((0,) if attack == NONE else FS, SIZES):
            found = select(results, {"alpha": alpha, "attack": attack, "attackers": f, "size": size})
            if found:
                division = "IID" if alpha is None else f"Dirichlet {alpha:g}"
                rows.append([division, attack, str(f), str(size), *_row(found)])
    return header, rows


def _row(found: Sequence[Result]) -> list[str]:
    def total(key: str) -> int:
        return sum(r[key] for r in found)

    def percent(key: str) -> str:
        return f"{100 * np.mean([r[key] for r in found]):.1f}"

    clean = total("clean_groups")
    return [
        f"{total('caught')} of {total('attackers')}" if total("attackers") else "-",
        median_of(found, "last_catch"),
        percent("kept_out") if total("attackers") else "-",
        str(total("wronged")),
        percent("lost"),
        f"{100 * total('clean_flagged') / clean:.1f}" if clean else "-",
        confidence([r["late_accuracy"] for r in found]),
    ]


def page(results: Results, data: str, seeds: int, rounds: int, command: str) -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    return f"""# Secure aggregation in groups: {data}

{headline(results)}

<!-- not run: several minutes on two cores -->
```bash
{command}
```

- {CLIENTS} clients in random groups, drawn anew in every round; the guard `auto` is given the means of the groups and
  no single update. With size 1 it sees every client, as without secure aggregation. See
  [secure aggregation](../secure-aggregation.md).
- Data, model and training are those of `fedwarden bench defences --data {data}`, for {count(rounds, "round")} and
  {count(seeds, "seed")}. Attackers attack in every round.
- *All of them by round* is the median over the runs in which all were excluded. *Their updates kept out*: of all
  updates of attackers, those that were not in the model, with their group or because they were excluded. *Honest
  updates lost*: those of clients that were asked, and left out with their group or alone.
- *Groups without attacker flagged* is what the guarantee wants to be at most 5 %. Counts are over all seeds; accuracy
  is on test data, averaged over the last {LATE} rounds, in percent with the 95 % interval over seeds.

{markdown(*grid(results))}

The table as CSV: [{CSV}]({CSV})."""
