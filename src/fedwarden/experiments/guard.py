"""Does the guard find label flippers, and leave honest clients alone?

``published``: the settings of the PID-MADE authors on FEMNIST digits and PneumoniaMNIST. ``detection``: recall, rounds
to detection and false exclusions on digits over number of clients, share of attackers, poison and heterogeneity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from .study import Cell, Table, interval, markdown, select

PRESETS = ("none", "pid_made", "auto")
PUBLISHED = (
    # data set, clients, flipped, share of their labels
    ("femnist_digits", 20, 0, 1.0),
    ("femnist_digits", 20, 2, 1.0),
    ("femnist_digits", 20, 2, 0.5),
    ("femnist_digits", 20, 2, 0.1),
    ("femnist_digits", 20, 8, 1.0),
    ("femnist_digits", 40, 10, 1.0),
    ("femnist_digits", 40, 15, 1.0),
    ("pneumoniamnist", 8, 0, 1.0),
    ("pneumoniamnist", 8, 2, 1.0),
    ("pneumoniamnist", 8, 3, 1.0),
)
CLIENTS, SHARES, POISONS, PARTITIONS = (5, 10, 20, 40), (0.1, 0.25, 0.4), (0.1, 0.5, 1.0), ("iid", "dirichlet")


def published(seeds: Sequence[int], device: str = "cpu") -> list[tuple[Cell, Table]]:
    """The cells of the study on the authors' data, model and training."""
    cells: list[tuple[Cell, Table]] = []
    for (data, n, f, fraction), preset, seed in product(PUBLISHED, PRESETS, seeds):
        cell = {"data": data, "clients": n, "attackers": f, "fraction": fraction, "preset": preset, "seed": seed}
        table = {
            "seed": seed,
            "rounds": 30,
            "target": 0.9,
            "checkpoint_every": 30,
            "data": {"dataset": data, "partition": "given", "clients": n, "validation": 0.1},
            "model": "pid_made_cnn",
            "train": {"optimizer": "adam", "lr": 1e-3, "batch_size": 10, "epochs": 3, "device": device, "workers": 1},
            "attacks": [{"name": "label_flip", "count": f, "fraction": fraction}],
            "guard": {"preset": preset},
        }
        cells.append((cell, table))
    return cells


def published_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Attackers caught, honest clients excluded and both accuracies, per setting and preset."""
    rows = []
    for data, n, f, fraction in PUBLISHED:
        for preset in PRESETS:
            where = {"data": data, "clients": n, "attackers": f, "fraction": fraction, "preset": preset}
            found = select(results, where)
            if found:
                rows.append(
                    [
                        data, f"{f} of {n}", f"{100 * fraction:.0f} %" if f else "-", preset,
                        _counts(found, "caught", f), _counts(found, "wronged", n - f), _median(found, "last_catch"),
                        interval([r["accuracy"] for r in found]), interval([r["clients_accuracy"] for r in found]),
                    ]
                )  # fmt: skip
    header = (
        "data", "flipped", "labels", "preset", "attackers excluded", "honest excluded", "last in round",
        "clean accuracy", "the authors' accuracy",
    )  # fmt: skip
    return markdown(header, rows)


def detection(seeds: Sequence[int], device: str = "cpu") -> list[tuple[Cell, Table]]:
    """The cells of the study on digits."""
    cells: list[tuple[Cell, Table]] = []
    for n, partition, preset, seed in product(CLIENTS, PARTITIONS, PRESETS[1:], seeds):
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


def detection_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Per partition, number of clients and of attackers: recall by poison, rounds to detection, false exclusions."""
    rows = []
    for partition, n, preset in product(PARTITIONS, CLIENTS, PRESETS[1:]):
        for f in sorted({0, *(max(1, round(share * n)) for share in SHARES)}):
            where = {"partition": partition, "clients": n, "attackers": f, "preset": preset}
            recalls = [_recall(select(results, {**where, "poison": p})) if f else "-" for p in POISONS]
            found = select(results, where)
            if found:
                wronged = [r["wronged"] > 0 for r in found]
                rows.append(
                    [partition, n, f, preset, *recalls, _median(found, "last_catch"), f"{np.mean(wronged):.2f}"]
                )
    header = (
        "partition", "clients", "attackers", "preset", "recall, 10 % of labels", "50 %", "100 %", "median last catch",
        "runs with an honest client excluded",
    )  # fmt: skip
    return markdown(header, rows)


def detection_summary(results: Sequence[Mapping[str, Any]]) -> str:
    """The same over all numbers of clients."""
    rows = []
    for partition, preset in product(PARTITIONS, PRESETS[1:]):
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
    return markdown(header, rows)


STUDIES = {
    "published": (published, (published_table,)),
    "detection": (detection, (detection_summary, detection_table)),
}


def _recall(found: Sequence[Mapping[str, Any]]) -> str:
    return f"{np.mean([r['caught'] / r['attackers'] for r in found]):.2f}" if found else "-"


def _counts(found: Sequence[Mapping[str, Any]], key: str, of: int) -> str:
    values = [r[key] for r in found]
    low, high = min(values), max(values)
    return f"{low} of {of}" if low == high else f"{low} to {high} of {of} (mean {np.mean(values):.1f})"


def _median(found: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [r[key] for r in found if r[key] is not None]
    return f"{np.median(values):.0f}" if values else "-"
