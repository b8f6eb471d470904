"""PID-MADE in the settings of its authors: label flippers on FEMNIST digits and PneumoniaMNIST, found or not.

``published``: their data, model and training, without a guard, with theirs and with ``auto``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from ..studies.runner import Cell, Table
from ..studies.tables import Grid, Result, Results, interval, median_of, select

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


def published_table(results: Results) -> Grid:
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
                        _counts(found, "caught", f), _counts(found, "wronged", n - f), median_of(found, "last_catch"),
                        interval([r["accuracy"] for r in found]), interval([r["clients_accuracy"] for r in found]),
                    ]
                )  # fmt: skip
    header = (
        "data", "flipped", "labels", "preset", "attackers excluded", "honest excluded", "last in round",
        "clean accuracy", "the authors' accuracy",
    )  # fmt: skip
    return header, rows


def _counts(found: Sequence[Result], key: str, of: int) -> str:
    values = [r[key] for r in found]
    low, high = min(values), max(values)
    return f"{low} of {of}" if low == high else f"{low} to {high} of {of} (mean {np.mean(values):.1f})"
