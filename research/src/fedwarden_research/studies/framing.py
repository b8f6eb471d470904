"""Attackers who want an honest client excluded: how often they get it, beside runs in which nobody attacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any, get_args

import numpy as np

from fedwarden.core.types import RoundRecord
from fedwarden.core.words import count
from fedwarden.guard.copies import told_leaders
from fedwarden.sim.scenario import load_scenario
from fedwarden.store.conclusion import mostly_out, presence
from fedwarden.studies.runner import LATE, Cell, Table, played

from ..attacks.frame import How
from .defences import SETTINGS, check_data
from .plan import Asked, Plan, check, division, scenario
from .tables import columns, confidence, markdown, select, share

NONE = "none"
HOWS: tuple[str, ...] = get_args(How)
SIZES = ((4, 1), (5, 1), (5, 2), (8, 3), (10, 4), (20, 8), (40, 16))
"""Clients, and how many of them attack."""
ALPHAS = (None, 1.0, 0.5)
ROUNDS, SEEDS = 20, 5
SKIPPED = 0.1  # of its rounds: a client that is skipped in more of them is counted

Results = Sequence[Mapping[str, Any]]


def plan(asked: Asked) -> Plan:
    """Every way to frame, number of clients and division of the data."""
    data, seeds, rounds = asked.data or "digits", asked.seeds or SEEDS, asked.rounds or ROUNDS
    check_data(data)
    check("attack", asked.attack, [NONE, *HOWS])
    wanted = cells(range(seeds), data, rounds, asked.attack or (NONE, *HOWS))
    command = asked.command("framing", data=data, seeds=seeds, rounds=rounds)
    return Plan(
        f"framing-{data}-{rounds}",
        wanted,
        "framing.md" if data == "digits" else f"framing-{data}.md",
        headline,
        lambda found: page(found, data, rounds, command),
        run=measure,
        tried=[table for _, table in wanted[:1]],
    )


def cells(seeds: Sequence[int], data: str, rounds: int, hows: Sequence[str]) -> list[tuple[Cell, Table]]:
    """All runs, seed by seed."""
    found: list[tuple[Cell, Table]] = []
    for seed, (n, f), alpha, how in product(seeds, SIZES, ALPHAS, hows):
        attacks = [] if how == NONE else [{"name": "frame", "how": how, "count": f}]
        own = {"clients": n, "partition": division(alpha)}
        table = scenario(SETTINGS[data], seed, rounds, {"preset": "auto"}, own, attacks)
        found.append(({"clients": n, "attackers": f, "alpha": alpha, "how": how, "seed": seed}, table))
    return found


def measure(table: Table) -> dict[str, Any]:
    """Run one scenario in a workspace of its own and return what is kept of it."""
    return tally(played(table).records, load_scenario(table).truth())


def part(record: RoundRecord, client: str) -> float:
    """The weight of a client and of those that copy it in a round, over that of one of n equal clients."""
    leaders = told_leaders(record.notes, record.client_ids, record.excluded)
    same = leaders == leaders[record.client_ids.index(client)]
    return float(len(leaders) * record.weights[same].sum())


def tally(records: Sequence[RoundRecord], attackers: Collection[str]) -> dict[str, Any]:
    """How many honest clients were excluded for good, skipped in a tenth of the rounds, or mostly out at the end.

    Also the late accuracy, and the part of the model that the framed client had, the first honest one.
    """
    framed = next(c for c in records[0].client_ids if c not in attackers)
    gone = {c for r in records for c in set(r.excluded) - set(r.suspended)} - set(attackers)
    here = {c: np.mean(rounds) for c, rounds in presence(records).items() if c not in attackers}
    return {
        "excluded": len(gone),
        "skipped": sum(bool(share < 1 - SKIPPED) for share in here.values()),
        "out": len(mostly_out(records) - set(attackers)),
        "late_accuracy": float(np.mean([r.metrics["accuracy"] for r in records[-LATE:]])),
        "part": float(np.mean([part(r, framed) for r in records if framed in r.client_ids])),
    }


def headline(results: Results) -> str:
    """In how many runs an honest client was excluded for good, with framing and without."""
    parts = []
    for words, hows in (("with framing", HOWS), ("without", (NONE,))):
        if found := [r for how in hows for r in select(results, {"how": how})]:
            hits = sum(r["excluded"] > 0 for r in found)
            parts.append(f"in {hits} of {count(len(found), 'run')} ({100 * hits / len(found):.1f} %) {words}")
    return f"`auto` excluded an honest client for good {', and '.join(parts)}." if parts else "Nothing was run."


def by_way(results: Results) -> str:
    """Per way to frame: runs with an honest client excluded or skipped, with 95 % intervals, and accuracy."""
    header = columns(
        "attackers | runs | with an honest client excluded for good | with one skipped in a tenth of the rounds | "
        "with one mostly out at the end | accuracy | part of the framed client | least"
    )
    rows = []
    for how in (NONE, *HOWS):
        found = select(results, {"how": how})
        parts = [r["part"] for r in found]
        rows.append([how, *_row(found), *([f"{np.mean(parts):.2f}", f"{min(parts):.2f}"] if parts else ["-", "-"])])
    return markdown(header, rows)


def by_size(results: Results) -> str:
    """The same per number of clients and division of the data, over all ways to frame."""
    header = columns(
        "attackers of clients | division | runs | with an honest client excluded for good | "
        "with one skipped in a tenth of the rounds | with one mostly out at the end | accuracy"
    )
    rows = []
    for (n, f), alpha in product(SIZES, ALPHAS):
        where = {"clients": n, "attackers": f, "alpha": alpha}
        found = [r for how in HOWS for r in select(results, {**where, "how": how})]
        rows.append([f"{f} of {n}", "IID" if alpha is None else f"Dirichlet {alpha:g}", *_row(found)])
    return markdown(header, rows)


def _row(found: Sequence[Mapping[str, Any]]) -> list[object]:
    rates = [share(sum(r[k] > 0 for r in found), len(found)) for k in ("excluded", "skipped", "out")]
    return [len(found), *rates, confidence([r["late_accuracy"] for r in found])]


def page(results: Results, data: str, rounds: int, command: str) -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    return f"""# Framing: {data}

{headline(results)}

<!-- not run: an hour on two cores -->
```bash
{command}
```

- The attackers see every update of the round, and all of them turn on the first honest client: `copy` sends what it
  sends, `surround` nearly the same, `oppose` its mirror image about the mean, `shrink` a thousandth of it, and `crowd`
  the mean of the other honest clients. `none` are the same runs without attackers.
- Data, model and training are those of `fedwarden bench defences --data {data}`, for {count(rounds, "round")}.
- *Part* is the weight of the framed client and of all that copy it, over that of one of n equal clients, as the mean
  over the rounds of a run: over all runs, and in the run with the least.
- Shares of runs are in percent, with the 95 % interval (Clopper and Pearson). *Accuracy* is on test data, averaged over
  the last {LATE} rounds, in percent with the 95 % interval over runs.

## By way

{by_way(results)}

## By number of clients, all ways together

{by_size(results)}"""
