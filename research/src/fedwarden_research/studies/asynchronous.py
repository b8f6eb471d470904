"""Clients of different speed, and a server that folds every few replies: FedBuff, alone and guarded, under attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedwarden.core.types import RoundRecord
from fedwarden.studies.runner import Cell, Table, played

from .defences import SETTINGS
from .plan import Asked, Plan, check, scenario
from .tables import Results, confidence, markdown, select, write_csv

CLIENTS, ATTACKERS = 20, 4
SPEEDS = 10.0  # times as long as the fastest client takes the slowest
REPLIES = 400
SOON = 8  # replies of an attacker after which it should have been left out
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
HEADER = (
    "data", "buffer", "attack", "guard", "runs", "accuracy", "points below no attack", "attackers in doubt by reply 8",
    "attackers left out by reply 8", "weight of the attackers", "honest clients ever in doubt",
    "honest clients ever left out",
)  # fmt: skip


def plan(asked: Asked) -> Plan:
    """All buffers, attacks and guards on each data set asked for."""
    check("data set", [asked.data] if asked.data else [], list(SETTINGS))
    check("attack", asked.attack, list(ATTACKS))
    check("defence", asked.defence, list(DEFENCES))
    data, seeds = asked.data or "digits", asked.seeds or 5
    attacks = [name for name in ATTACKS if name in asked.attack or name == NO_ATTACK or not asked.attack]
    defences = [name for name in DEFENCES if name in asked.defence or name == PLAIN or not asked.defence]
    command = asked.command("asynchronous", data=data, seeds=seeds)
    return Plan(
        f"asynchronous-{data}",
        cells(data, range(seeds), attacks, defences),
        f"asynchronous-{data}.md",
        lambda found: markdown(list(HEADER), rows(data, found)),
        lambda found: page(data, found, command),
        run=measure,
        pictures=lambda found, folder: write(data, found, folder),
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


def rows(data: str, results: Results) -> list[list[str]]:
    """One row per buffer, attack and guard."""
    made = []
    for buffer, attack, defence in product(BUFFERS, ATTACKS, DEFENCES):
        found = select(results, {"buffer": buffer, "attack": attack, "defence": defence})
        if not found:
            continue
        plain = select(results, {"buffer": buffer, "attack": NO_ATTACK, "defence": PLAIN})[: len(found)]
        cost = 100 * (np.mean([r["accuracy"] for r in plain]) - np.mean([r["accuracy"] for r in found]))
        attackers = sum(len(r["outs"]) for r in found)
        soon = [f"{sum(n <= SOON for r in found for n in r[key])} of {attackers}" for key in ("doubts", "outs")]
        honest = sum(r["honest"] for r in found)
        made.append(
            [
                data, str(buffer), attack, defence, str(len(found)), confidence([r["accuracy"] for r in found]),
                f"{cost:.1f}", *(soon if attackers else ["-", "-"]),
                f"{np.mean([r['held'] for r in found]):.3f}" if attackers else "-",
                *(f"{sum(r[key] for r in found)} of {honest}" for key in ("honest doubted", "honest out")),
            ]
        )  # fmt: skip
    return made


def page(data: str, results: Results, command: str) -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    return f"""# Asynchronous federations: {data}

{CLIENTS} clients, the slowest {SPEEDS:g} times slower than the fastest, {ATTACKERS} of them attackers of any speed;
{REPLIES} replies, folded by one, four or ten.

<!-- not run: an hour on two cores -->
```bash
{command}
```

- *Accuracy* is the mean over the last tenth of the buffers, in percent with its 95 % interval over seeds; *points below
  no attack* compares it with {PLAIN} without attack.
- *Left out* is a client whose reply had no weight, or that was suspended or excluded. *Weight of the attackers* is
  their share of the weight of the last {LAST} buffers.

{markdown(list(HEADER), rows(data, results))}

[The same as CSV](asynchronous-{data}.csv)"""


def write(data: str, results: Results, folder: Path) -> list[Path]:
    """The same as a CSV file."""
    return [write_csv(folder / f"asynchronous-{data}.csv", (list(HEADER), rows(data, results)))]
