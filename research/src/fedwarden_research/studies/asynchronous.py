"""Clients of different speed, and a server that folds every few replies: FedBuff, alone and guarded, under attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from fedwarden.core.types import RoundRecord
from fedwarden.core.words import count
from fedwarden.studies.runner import Cell, Table, played

from .defences import SETTINGS
from .plan import Asked, Plan, check, scenario
from .tables import Grid, Results, confidence, markdown, select, write_csv

CLIENTS, ATTACKERS = 20, 4
SPEEDS = 10.0  # times as long as the fastest client takes the slowest
REPLIES = 400
SEEDS, HONEST = 3, 20  # runs under each attack, and without attack
SOON = 8  # replies of an attacker by which it should have been left out
LAST = 10  # buffers at the end of a run whose weights are counted
BUFFERS = (1, 4, 10)
NO_ATTACK = "none"
ATTACKS = {NO_ATTACK: "", "sign flip": "sign_flip", "label flip": "label_flip", "scaling": "scaling"}
PLAIN = "FedBuff"
DEFENCES: Mapping[str, Table] = {
    PLAIN: {"preset": "none"},
    "auto": {"preset": "auto"},
    "auto, alike": {"preset": "auto", "options": {"alike": True}},
}
RUN = ("data", "buffer", "attack", "guard", "runs", "accuracy", "points below no attack")
OF_ATTACKERS = ("attackers in doubt by reply 8", "attackers left out by reply 8", "weight of the attackers")
OF_HONEST = ("honest clients ever in doubt", "honest clients ever left out")


def plan(asked: Asked) -> Plan:
    """All buffers, attacks and guards on each data set asked for."""
    check("data set", [asked.data] if asked.data else [], list(SETTINGS))
    check("attack", asked.attack, list(ATTACKS))
    check("defence", asked.defence, list(DEFENCES))
    data, seeds = asked.data or "digits", asked.seeds or SEEDS
    attacks = [name for name in ATTACKS if name != NO_ATTACK and (name in asked.attack or not asked.attack)]
    defences = [name for name in DEFENCES if name in asked.defence or name == PLAIN or not asked.defence]
    alone = seeds if asked.attack else max(seeds, HONEST)
    wanted = cells(data, range(seeds), attacks, defences) + cells(data, range(alone), [NO_ATTACK], defences)
    command = asked.command("asynchronous", data=data, seeds=seeds)
    return Plan(
        f"asynchronous-{data}",
        wanted,
        f"asynchronous-{data}.md",
        lambda found: "\n\n".join([*(markdown(*grid) for grid in grids(data, found).values()), headline(found)]),
        lambda found: page(data, found, command),
        run=measure,
        pictures=lambda found, folder: [write_csv(folder / name, grid) for name, grid in grids(data, found).items()],
        tried=[table for _, table in wanted[:1]],
    )


def cells(data: str, seeds: Sequence[int], attacks: Sequence[str], defences: Sequence[str]) -> list[tuple[Cell, Table]]:
    """All runs, seed by seed."""
    found: list[tuple[Cell, Table]] = []
    for seed, attack, defence, buffer in product(seeds, attacks, defences, BUFFERS):
        doing = [{"name": ATTACKS[attack], "count": ATTACKERS}] if ATTACKS[attack] else []
        table = scenario(
            SETTINGS[data], seed, REPLIES // buffer, DEFENCES[defence], {"clients": CLIENTS, "partition": "iid"}, doing
        )
        table["asynchronous"] = {"buffer": buffer, "speeds": SPEEDS}
        found.append(({"buffer": buffer, "attack": attack, "defence": defence, "seed": seed}, table))
    return found


def measure(table: Table) -> dict[str, Any]:
    """Run one scenario in a workspace of its own and return what is kept of it."""
    records = played(table).records
    many = max(1, len(records) // 10)
    bad = {str(i) for attack in table["attacks"] for i in range(attack["count"])}
    return {**tally(records, bad), "accuracy": float(np.mean([r.metrics["accuracy"] for r in records[-many:]]))}


def tally(records: Sequence[RoundRecord], attackers: set[str]) -> dict[str, Any]:
    """The reply with which each client was first in doubt and first left out, and the weight of the attackers at last.

    A client is left out where its reply has no weight, or it is excluded or suspended.
    """
    replies: dict[str, int] = {}
    doubts: dict[str, int] = {}
    outs: dict[str, int] = {}
    for record in records:
        for client, weight, odd in zip(record.client_ids, record.weights, record.flagged, strict=True):
            replies[client] = replies.get(client, 0) + 1
            if weight == 0 or client in record.excluded:
                outs.setdefault(client, replies[client])
            if odd:
                doubts.setdefault(client, replies[client])
    held = [(w, c in attackers) for r in records[-LAST:] for c, w in zip(r.client_ids, r.weights, strict=True)]
    total = sum(w for w, _ in held)
    honest = replies.keys() - attackers
    return {
        "doubts": sorted(doubts.get(client, REPLIES) for client in attackers),
        "outs": sorted(outs.get(client, REPLIES) for client in attackers),
        "held": float(sum(w for w, theirs in held if theirs) / total) if total else 0.0,
        "honest doubted": len(honest & doubts.keys()),
        "honest out": len(honest & outs.keys()),
        "honest": len(honest),
    }


def cost(results: Results, buffer: int, attack: str, defence: str) -> float | None:
    """Percentage points of accuracy below FedBuff without attack, on average over the seeds that both have."""

    def accuracies(attack: str, defence: str) -> dict[object, float]:
        where = {"buffer": buffer, "attack": attack, "defence": defence}
        return {r["cell"]["seed"]: r["result"]["accuracy"] for r in results if where.items() <= r["cell"].items()}

    plain, ours = accuracies(NO_ATTACK, PLAIN), accuracies(attack, defence)
    both = [plain[seed] - ours[seed] for seed in ours if seed in plain]
    return 100 * float(np.mean(both)) if both else None


def rows(data: str, results: Results, attacks: Sequence[str]) -> list[list[str]]:
    """One row per buffer, attack and guard; without attackers, their columns are left out."""
    made = []
    for buffer, attack, defence in product(BUFFERS, attacks, DEFENCES):
        found = select(results, {"buffer": buffer, "attack": attack, "defence": defence})
        if not found:
            continue
        attackers, honest = sum(len(r["outs"]) for r in found), sum(r["honest"] for r in found)
        soon = [f"{sum(n <= SOON for r in found for n in r[key])} of {attackers}" for key in ("doubts", "outs")]
        lost = cost(results, buffer, attack, defence)
        made.append(
            [
                data, str(buffer), attack, defence, str(len(found)), confidence([r["accuracy"] for r in found]),
                "-" if lost is None else f"{lost:.1f}",
                *([*soon, f"{np.mean([r['held'] for r in found]):.3f}"] if attackers else []),
                *(f"{sum(r[key] for r in found)} of {honest}" for key in ("honest doubted", "honest out")),
            ]
        )  # fmt: skip
    return made


def grids(data: str, results: Results) -> dict[str, Grid]:
    """The tables with and without attackers, by the names of their files."""
    attacked = rows(data, results, [name for name in ATTACKS if name != NO_ATTACK])
    return {
        f"asynchronous-{data}.csv": ([*RUN, *OF_ATTACKERS, *OF_HONEST], attacked),
        f"asynchronous-{data}-honest.csv": ([*RUN, *OF_HONEST], rows(data, results, [NO_ATTACK])),
    }


def headline(results: Results) -> str:
    """For each guard and bar the worst case over the buffers."""
    lines = []
    for defence in [name for name in DEFENCES if name != PLAIN]:
        alone = select(results, {"attack": NO_ATTACK, "defence": defence})
        lost = [c for buffer in BUFFERS if (c := cost(results, buffer, NO_ATTACK, defence)) is not None]
        if lost:
            gone, many = sum(r["honest out"] for r in alone), sum(r["honest"] for r in alone)
            lines.append(
                f"- `{defence}`, no attack: {gone} of {many} honest clients left out in {count(len(alone), 'run')} "
                f"(bar: 0); at most {max(lost):.1f} points below {PLAIN} (bar: 1)."
            )
        for attack in [name for name in ATTACKS if name != NO_ATTACK]:
            under = select(results, {"attack": attack, "defence": defence})
            lost = [c for buffer in BUFFERS if (c := cost(results, buffer, attack, defence)) is not None]
            if under and lost:
                outs = [n for r in under for n in r["outs"]]
                gone, many = sum(r["honest out"] for r in under), sum(r["honest"] for r in under)
                lines.append(
                    f"- `{defence}`, {attack}: at most {max(lost):.1f} points lost (bar: 1.5); "
                    f"{sum(n <= SOON for n in outs)} of {len(outs)} attackers left out by reply {SOON} (bar: all), "
                    f"half of them by reply {np.quantile(outs, 0.5, method='lower'):g}, and they have "
                    f"{100 * max(r['held'] for r in under):.1f} % of the weight at most; {gone} of {many} honest "
                    "clients left out."
                )
    return "\n".join(lines)


def page(data: str, results: Results, command: str) -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    return f"""# Asynchronous federations: {data}

{headline(results)}

{CLIENTS} clients, the slowest {SPEEDS:g} times slower than the fastest; {REPLIES} replies, folded by one, four or ten.
Under attack, {ATTACKERS} of the clients attack, whatever their speed.

<!-- not run: half an hour to two hours on two cores -->
```bash
{command}
```

- *Accuracy* is the mean over the last tenth of the buffers, in percent with its 95 % interval over seeds; *points below
  no attack* compares it with {PLAIN} without attack, on the same seeds.
- *Left out* is a client whose reply had no weight, or that was suspended or excluded. *Weight of the attackers* is
  their share of the weight of the last {LAST} buffers.

[Under attack](asynchronous-{data}.csv)

[Without attack](asynchronous-{data}-honest.csv)"""
