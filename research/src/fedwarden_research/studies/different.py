"""Honest clients that differ: what a defence costs the model, the different client's own class or kind, and the client.

No client attacks. Every run has a second one of the same seed with plain FedAvg, and what is told is the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedwarden.core.config import override
from fedwarden.core.types import RoundRecord
from fedwarden.core.words import count
from fedwarden.sim.data.sources import DataError, locate
from fedwarden.store.conclusion import presence
from fedwarden.studies.attack_cases import choose
from fedwarden.studies.runner import LATE, Cell, Table, played

from .defences import DEFENCES as ALL_DEFENCES
from .defences import SETTINGS, check_data
from .long_runs import refuse, study_name
from .plan import Asked, Plan, check, scenario
from .tables import Results, columns, confidence, markdown, mean_interval, share, write_csv

PLAIN, GUARD = "FedAvg", "auto"
DEFENCES = (PLAIN, GUARD, "median", "trimmed mean", "Multi-Krum", "RFA", "norm clipping", "PID-MADE")
FEARED = 0.2  # the share of attackers that rules which ask for a number of them are told, as far as they tolerate it
OWNED, USUAL, DIRICHLET = (5, 10, 20, 40), (10,), (4, 5, 10, 20)
"""Numbers of clients: where few clients hold a class, of the other kinds, and where all differ by a Dirichlet draw."""
ROUNDS, SEEDS = 60, 5
BELOW = 0.04  # a run that is so far below FedAvg has lost something

OUTCOMES = {"late_accuracy": "accuracy", "late_recall": "class_recall", "late_own_kind": "own_kind_accuracy"}
"""The means over the last rounds that are compared with FedAvg's, and the metrics that they are of."""


@dataclass(frozen=True)
class Kind:
    """A way in which honest clients differ: what it changes of a scenario, and the positions of the clients.

    ``change`` takes the scenario and the label of the class that few clients hold.
    """

    name: str
    change: Callable[[dict[str, Any], int], None]
    different: Sequence[int] = (0,)
    sizes: Sequence[int] = USUAL
    file: str | None = None
    """A data file of its own, where the kind is not one of a usual data set."""


def _owner(
    table: dict[str, Any], label: int, owners: Sequence[int] = (0,), joins: bool = False, **options: Any
) -> None:
    partition = {"name": "owner", "label": label, "owners": list(owners), **options}
    table["data"] |= {"partition": partition, "joins": {"0": table["rounds"] // 3 + 1} if joins else {}}
    table["recalls"] = [label]


def _differ(table: dict[str, Any], label: int, halfway: bool = False, **difference: Any) -> None:
    start = table["rounds"] // 2 + 1 if halfway else 1
    table["differences"] = [{**difference, "clients": [0], "start": start}]


def _train(table: dict[str, Any], label: int, faster: float = 1.0, epochs: int = 1, **own: Any) -> None:
    """Let client 0 train in its own way; an option of all clients is the setting's own, but for one epoch a round."""
    train = table["train"]
    if faster != 1:
        own["lr"] = faster * train["lr"]
    if epochs != 1:
        train["epochs"], own["epochs"] = 1, epochs
    train["own"] = {"0": own}


def _partition(table: dict[str, Any], label: int, **partition: Any) -> None:
    table["data"]["partition"] = partition


def _real(table: dict[str, Any], label: int, **setting: Any) -> None:
    table["data"] = {**setting["data"], "clients": table["data"]["clients"]}
    table["model"] = setting["model"]
    table["train"] |= setting["train"]


WRITERS: Table = {
    "data": {"dataset": "femnist_writers", "partition": "given"},
    "model": {"name": "mlp", "hidden": [128]},
    "train": {"lr": 0.05, "momentum": 0.9, "epochs": 2, "batch_size": 16},
}
AIR = "beijing_air.csv.gz"
STATIONS: Table = {
    "data": {
        "dataset": {
            "name": "csv", "file": AIR, "label": "polluted_tomorrow", "client": "station", "drop": ["time"]
        },
        "partition": "given", "limit": 12_000,
    },
    "model": {"name": "mlp", "hidden": [32]},
    "train": {"lr": 0.05, "momentum": 0.9, "epochs": 1, "batch_size": 32},
}  # fmt: skip

KINDS: Sequence[Kind] = (
    Kind("one owner of a class", _owner, (0,), OWNED),
    Kind("two owners of a class", partial(_owner, owners=(0, 1)), (0, 1), OWNED),
    Kind("one owner with only that class", partial(_owner, only=True), (0,), OWNED),
    Kind("two owners with only that class", partial(_owner, owners=(0, 1), only=True), (0, 1), OWNED),
    Kind("an owner that joins late", partial(_owner, joins=True), (0,), OWNED),
    Kind("80 % of a class", partial(_owner, share=0.8), (0,), OWNED),
    Kind("inverted inputs", partial(_differ, name="invert")),
    Kind("rotated inputs", partial(_differ, name="rotation")),
    Kind("inputs inverted halfway", partial(_differ, name="invert", halfway=True)),
    Kind("ten times the data", partial(_partition, name="large", times=10.0)),
    Kind("three times the learning rate", partial(_train, faster=3.0)),
    Kind("five epochs against one", partial(_train, epochs=5)),
    Kind("Adam", partial(_train, optimizer="adam", lr=0.001)),
    Kind("8 bits a number", partial(_differ, name="quantised", bits=8)),
    Kind("noised updates", partial(_differ, name="noised", ratio=1.0)),
    Kind("Dirichlet 0.1", partial(_partition, name="dirichlet", alpha=0.1), (), DIRICHLET),
    Kind("Dirichlet 0.3", partial(_partition, name="dirichlet", alpha=0.3), (), DIRICHLET),
    Kind("FEMNIST writers", partial(_real, **WRITERS), (), (12,), "femnist62_writers.npz"),
    Kind("stations of Beijing", partial(_real, **STATIONS), (), (12,), AIR),
)


def plan(asked: Asked) -> Plan:
    """Every kind, number of clients and defence on one data set; the real federations go with digits."""
    data, seeds, rounds = asked.data or "digits", asked.seeds or SEEDS, asked.rounds or ROUNDS
    check_data(data)
    check("defence", asked.defence, DEFENCES)
    known = choose([kind for kind in KINDS if kind.file is None or data == "digits"], asked.case)
    missing = [kind for kind in known if kind.file is not None and not at_hand(kind.file)]
    known = [kind for kind in known if kind not in missing]
    defences = [d for d in DEFENCES if d == PLAIN or not asked.defence or d in asked.defence]
    wanted = cells(range(seeds), known, data, rounds, defences, asked.clients, asked.settings)
    skipped = "\n".join(f"Skipped: {kind.name}. There is no file {kind.file} in any data folder." for kind in missing)
    command = asked.command("different", data=data, seeds=seeds, rounds=rounds)
    return Plan(
        study_name(data, rounds, asked.settings).replace("long-runs", "different"),
        wanted,
        "different.md" if data == "digits" else f"different-{data}.md",
        lambda found: "\n\n".join(filter(None, [skipped, headline(found), by_defence(found)])),
        lambda found: page(found, data, rounds, command, skipped),
        run=measure,
        counts=lambda found: {"kinds": list(records(found))},
        pictures=partial(write, data=data),
        tried=[table["scenario"] for _, table in wanted[:1]],
    )


def at_hand(file: str) -> bool:
    try:
        locate(file, None)
    except DataError:
        return False
    return True


def cells(
    seeds: Sequence[int], known: Sequence[Kind], data: str, rounds: int, defences: Sequence[str],
    clients: Sequence[int] = (), settings: Sequence[str] = (),
) -> list[tuple[Cell, Table]]:  # fmt: skip
    """All runs, seed by seed; ``clients`` are other numbers of them than a kind's own, but for real federations.

    The label of the class that few clients hold is another one for every seed. ``settings`` change every scenario;
    those of the guard change ``auto`` alone.
    """
    refuse(settings)
    found: list[tuple[Cell, Table]] = []
    for seed, kind in product(seeds, known):
        for n, defence in product(clients if clients and kind.file is None else kind.sizes, defences):
            table = scenario_of(kind, n, defence, data, rounds, seed)
            mine = [s for s in settings if defence == GUARD or not s.strip().startswith("guard.")]
            cell = {"kind": kind.name, "clients": n, "defence": defence, "seed": seed}
            different = [str(i) for i in kind.different]
            found.append((cell, {"scenario": override(table, mine), "different": different}))
    return found


def scenario_of(kind: Kind, n: int, defence: str, data: str, rounds: int, seed: int) -> dict[str, Any]:
    """The scenario of one run."""
    own = {"clients": n, "partition": "iid"}
    table = scenario(SETTINGS[data], seed, rounds, ALL_DEFENCES[defence](feared(n)), own)
    kind.change(table, seed % 10)
    return table


def feared(n: int) -> int:
    """How many attackers a rule is told to expect: a fifth, and at most what Multi-Krum tolerates (n >= 2f + 3).

    >>> [feared(n) for n in (4, 5, 10, 40)]
    [0, 1, 2, 8]
    """
    return max(0, min(max(1, round(FEARED * n)), (n - 3) // 2))


def measure(table: Table) -> dict[str, Any]:
    """Run one scenario in a workspace of its own and return what is kept of it."""
    return tally(played(table["scenario"]).records, table["different"])


def tally(records: Sequence[RoundRecord], different: Sequence[str]) -> dict[str, Any]:
    """What is kept of a run: late means, clients excluded for good by its end, and client-rounds out of the model.

    ``out`` has for the ordinary and the different clients how many of their rounds they were out, and all rounds.
    """
    inside = presence(records)
    groups = {"ordinary": set(inside) - set(different), "different": set(inside) & set(different)}
    last = records[-1]
    late = {
        name: [r.metrics[metric] for r in records[-LATE:] if metric in r.metrics] for name, metric in OUTCOMES.items()
    }
    return {
        **{name: float(np.mean(values)) if values else None for name, values in late.items()},
        "excluded": sorted(set(last.excluded) - set(last.suspended)),
        "out": {
            name: [sum(inside[c].count(False) for c in group), sum(len(inside[c]) for c in group)]
            for name, group in groups.items()
        },
    }


@dataclass(frozen=True)
class Compared:
    """The runs of some cells with one defence, against those of the same seeds with FedAvg."""

    gains: Mapping[str, Sequence[float]]
    """Per outcome the differences to FedAvg, run by run."""
    excluded: int
    runs: int
    out: Mapping[str, tuple[int, int]]

    @property
    def below(self) -> int:
        """The runs whose accuracy is so far below FedAvg's that something is lost."""
        return sum(round(gain, 9) <= -BELOW for gain in self.gains["late_accuracy"])

    @property
    def pairs(self) -> int:
        return len(self.gains["late_accuracy"])


def compare(results: Results, defence: str, **where: object) -> Compared:
    """The runs with a defence of the cells that have these values."""
    plain = {_place(r["cell"]): r["result"] for r in results if r["cell"]["defence"] == PLAIN}
    found = [r for r in results if r["cell"]["defence"] == defence and all(r["cell"][k] == v for k, v in where.items())]
    pairs = [(r["result"], plain[_place(r["cell"])]) for r in found if _place(r["cell"]) in plain]
    gains = {
        name: [mine[name] - other[name] for mine, other in pairs if None not in (mine[name], other[name])]
        for name in OUTCOMES
    }
    out = {
        group: (sum(r["result"]["out"][group][0] for r in found), sum(r["result"]["out"][group][1] for r in found))
        for group in ("ordinary", "different")
    }
    return Compared(gains, sum(bool(r["result"]["excluded"]) for r in found), len(found), out)


def _place(cell: Mapping[str, Any]) -> tuple[object, ...]:
    return cell["kind"], cell["clients"], cell["seed"]


HEADER = columns(
    "runs | accuracy - FedAvg's | runs 4 points or more below FedAvg | recall of the own class - FedAvg's | "
    "accuracy on the own kind - FedAvg's | runs with an honest client excluded for good | ordinary clients out | "
    "different clients out"
)


def row(found: Compared) -> list[object]:
    """What is told of some runs, under ``HEADER``."""
    accuracy, recall, kind = (confidence(found.gains[name]) for name in OUTCOMES)
    return [
        found.runs, accuracy, share(found.below, found.pairs), recall, kind, share(found.excluded, found.runs),
        *(f"{100 * out / rounds:.1f} %" if rounds else "-" for out, rounds in found.out.values()),
    ]  # fmt: skip


def present(results: Results, key: str, order: Sequence[str]) -> list[str]:
    """The values that some cell has, in order."""
    there = {r["cell"][key] for r in results}
    return [value for value in order if value in there]


def by_defence(results: Results, **where: object) -> str:
    """Per defence, over all kinds or of the cells that have these values."""
    rows = [[d, *row(compare(results, d, **where))] for d in present(results, "defence", DEFENCES)]
    return markdown(("defence", *HEADER), rows)


def headline(results: Results, defence: str = GUARD) -> str:
    """In how many runs the guard lost something that FedAvg learns, and in how many an honest client was excluded."""
    found = compare(results, defence)
    if not found.pairs:
        return f"`{defence}` was not run."
    mean, half = mean_interval(found.gains["late_accuracy"])
    return (
        f"`{defence}` is {100 * BELOW:.0f} points or more below FedAvg in {found.below} of "
        f"{count(found.pairs, 'run')}, and excludes an honest client for good in {found.excluded}. Its mean difference "
        f"to FedAvg is {100 * mean:.1f} ± {100 * half:.1f} points."
    )


def records(results: Results) -> Iterator[dict[str, Any]]:
    """One entry per kind, number of clients and defence: the numbers of the table, as numbers."""
    for kind in present(results, "kind", [kind.name for kind in KINDS]):
        sizes = sorted({r["cell"]["clients"] for r in results if r["cell"]["kind"] == kind})
        for n, defence in product(sizes, present(results, "defence", DEFENCES)):
            found = compare(results, defence, kind=kind, clients=n)
            if not found.runs:
                continue
            entry: dict[str, Any] = {"kind": kind, "clients": n, "defence": defence, "runs": found.runs}
            for name in OUTCOMES:
                mean, half = mean_interval(found.gains[name]) if found.gains[name] else (None, None)
                entry |= {name: mean, f"{name}_half_width": half}
            entry |= {"below": found.below, "excluded": found.excluded}
            yield entry | {
                f"{group}_out": out / rounds if rounds else None for group, (out, rounds) in found.out.items()
            }


def write(results: Results, folder: Path, data: str) -> list[Path]:
    """The same as a CSV file; differences are to FedAvg."""
    found = list(records(results))
    lines = [["" if v is None else f"{v:.4f}" if isinstance(v, float) else str(v) for v in e.values()] for e in found]
    name = "different.csv" if data == "digits" else f"different-{data}.csv"
    return [write_csv(folder / name, (list(found[0]), lines))] if found else []


def page(results: Results, data: str, rounds: int, command: str, skipped: str = "") -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    kinds = present(results, "kind", [kind.name for kind in KINDS])
    tables = "\n\n".join(f"## {kind[0].upper()}{kind[1:]}\n\n{by_defence(results, kind=kind)}" for kind in kinds)
    note = f"\n\n{skipped}" if skipped else ""
    return f"""# Honest clients that differ: {data}

{headline(results)}{note}

<!-- not run: an hour on two cores -->
```bash
{command}
```

- No client attacks. Each run is compared with plain FedAvg on the same seed: the same data, clients and batches.
- Data, model and training are those of `fedwarden bench defences --data {data}`, for {count(rounds, "round")}. The
  class that few clients hold is another one for every seed. A late client joins after a third of the rounds; inputs
  change after half of them.
- *Accuracy*, *recall* and *accuracy on the own kind* (the test set with inputs as those of the different client) are
  means over the last {LATE} rounds, as differences in points with the 95 % interval over runs. Shares of runs have the
  interval of Clopper and Pearson.
- *Out* is the share of client-rounds in which a client was not in the model; once a client is excluded for good, every
  later round counts.
- Rules that ask for a number of attackers are told a fifth of the clients, or the most that Multi-Krum tolerates.
- `different.csv` has the same by number of clients.

## All kinds together

{by_defence(results)}

{tables}"""
