"""Does the guard find label flippers, and leave honest clients alone?

``detection``: recall, rounds to detection and false exclusions on digits over number of clients, share of attackers,
poison and heterogeneity.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from fedwarden.studies.runner import Cell, Table
from fedwarden.studies.tables import Grid, Result, Results, median_of, select

PRESETS = ("pid_made", "auto")
CLIENTS, SHARES, POISONS, PARTITIONS = (5, 10, 20, 40), (0.1, 0.25, 0.4), (0.1, 0.5, 1.0), ("iid", "dirichlet")


def detection(seeds: Sequence[int], device: str = "cpu") -> list[tuple[Cell, Table]]:
    """The cells of the study on digits."""
    cells: list[tuple[Cell, Table]] = []
    for n, partition, preset, seed in product(CLIENTS, PARTITIONS, PRESETS, seeds):
        for f in sorted({0, *(max(1, round(share * n)) for share in SHARES)}):
            for poison in POISONS if f else (0.0,):
                cell = {"clients": n, "partition": partition, "attackers": f, "poison": poison}
                table = {
                    "seed": seed,
                    "rounds": 30,
                    "checkpoint_every": 30,
                    "data": {"dataset": "digits", "partition": partition, "clients": n},
                    "model": {"name": "mlp", "hidden": [64]},
                    "train": {"lr": 0.1, "momentum": 0.9, "epochs": 2, "batch_size": 16, "group": 10, "workers": 1},
                    "attacks": [{"name": "label_flip", "count": f, "fraction": poison}],
                    "guard": {"preset": preset},
                }
                cells.append(({**cell, "preset": preset, "seed": seed}, table))
    return cells


def detection_table(results: Results) -> Grid:
    """Per partition, number of clients and of attackers: recall by poison, rounds to detection, false exclusions."""
    rows = []
    for partition, n, preset in product(PARTITIONS, CLIENTS, PRESETS):
        for f in sorted({0, *(max(1, round(share * n)) for share in SHARES)}):
            where = {"partition": partition, "clients": n, "attackers": f, "preset": preset}
            recalls = [_recall(select(results, {**where, "poison": p})) if f else "-" for p in POISONS]
            found = select(results, where)
            if found:
                wronged = [r["wronged"] > 0 for r in found]
                rows.append(
                    [
                        partition,
                        str(n),
                        str(f),
                        preset,
                        *recalls,
                        median_of(found, "last_catch"),
                        f"{np.mean(wronged):.2f}",
                    ]
                )
    header = (
        "partition", "clients", "attackers", "preset", "recall, 10 % of labels", "50 %", "100 %", "median last catch",
        "runs with an honest client excluded",
    )  # fmt: skip
    return header, rows


def detection_summary(results: Results) -> Grid:
    """The same over all numbers of clients."""
    rows = []
    for partition, preset in product(PARTITIONS, PRESETS):
        where = {"partition": partition, "preset": preset}
        recalls = [_recall(select(results, {**where, "poison": p})) for p in POISONS]
        clean = [r["wronged"] > 0 for r in select(results, {**where, "attackers": 0})]
        attacked = [r["wronged"] > 0 for r in select(results, where) if r["attackers"]]
        if clean and attacked:
            rows.append([partition, preset, *recalls, f"{np.mean(clean):.3f}", f"{np.mean(attacked):.3f}"])
    header = (
        "partition", "preset", "recall, 10 % of labels", "50 %", "100 %", "false exclusion, no attacker",
        "false exclusion, attacked",
    )  # fmt: skip
    return header, rows


def _recall(found: Sequence[Result]) -> str:
    return f"{np.mean([r['caught'] / r['attackers'] for r in found]):.2f}" if found else "-"
