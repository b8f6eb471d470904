"""The tables and figures of PID-MADE, in the order of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from fedwarden.studies.runner import Cell, Table

from ..studies.tables import Grid, Result, Results, Sheet, columns, median_of, select
from .item import Item, Paper, Sheets
from .pid_made_attackers import FIGURE_4, FIGURE_8
from .pid_made_attackers import SETTINGS_ITEM as SETTINGS
from .pid_made_attackers import TABLE as TABLE_4
from .pid_made_clients import FIGURE_9, FIGURE_10, FIGURE_11
from .pid_made_convergence import FIGURE_2, FIGURE_3
from .pid_made_text import FIGURE_5
from .pid_made_theory import ITEMS as BOUNDS
from .pid_made_thresholds import EDGE_CASES, THEOREM_5
from .pid_made_times import FIGURE_6, FIGURE_7
from .pid_made_times import TABLE as TABLE_3
from .pid_made_tuning import FIGURE_1

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
    header = columns(
        "partition | clients | attackers | preset | recall, 10 % of labels | 50 % | 100 % | median last catch | "
        "runs with an honest client excluded"
    )
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
    header = columns(
        "partition | preset | recall, 10 % of labels | 50 % | 100 % | false exclusion, no attacker | "
        "false exclusion, attacked"
    )
    return header, rows


def _recall(found: Sequence[Result]) -> str:
    return f"{np.mean([r['caught'] / r['attackers'] for r in found]):.2f}" if found else "-"


def digits_sheets(found: Results) -> list[Sheet]:
    return [
        Sheet("summary", "Over all numbers of clients", detection_summary(found)),
        Sheet("detail", "By number of clients and of attackers", detection_table(found)),
    ]


def digits_hold(sheets: Sheets) -> str:
    """Recall at full poison and false exclusions, by partition and preset."""
    told = [
        f"{r['preset']}, {r['partition']} {r['100 %']} and {100 * float(r['false exclusion, no attacker']):.0f} %"
        for r in sheets["summary"].records()
    ]
    return (
        "Recall where all labels are flipped, and runs without an attacker in which an honest client is excluded: "
        f"{'; '.join(told)}."
    )


DIGITS = Item(
    "digits", "Recall and false exclusions on digits", "this is not in the paper.", detection, digits_sheets,
    digits_hold, "2,960 runs: 25 minutes on 2 cores", runs="detection", seeds=20,
)  # fmt: skip

WORDS = """\
Every table and figure of Boosting Federated Model Convergence with Anomaly Detection and Exclusion. Its figures have no
numbers; what is quoted stands in its text and tables.

Accuracy and loss are measured on the validation data of *honest clients*, whose labels are right, and in *the authors'
way*: the mean over all clients that are not excluded, poisoned labels included. The latter charges a rule that excludes
no client for the attackers' wrong labels: with one of 8 clients flipped it cannot exceed 87.5 % by much. The paper has
Krum at 98 % on PneumoniaMNIST, so compare its baselines with honest clients.

[Finding label flippers](guard.md) has more on `auto`.
"""

ITEMS = (
    FIGURE_1, FIGURE_2, FIGURE_3, FIGURE_4, FIGURE_5, TABLE_3, FIGURE_6, FIGURE_7, TABLE_4, FIGURE_8, FIGURE_9,
    FIGURE_10, FIGURE_11, *BOUNDS, THEOREM_5, EDGE_CASES, SETTINGS, DIGITS,
)  # fmt: skip
PAPER = Paper(
    "pid-made",
    "PID-MADE: convergence, detection and cost",
    "https://openreview.net/forum?id=6YEW4KMfgF",
    ITEMS,
    WORDS.strip(),
)
