"""Figures 10 and 11 of PID-MADE: how many samples of each class the clients hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedwarden.sim.data.world import divide, load_data
from fedwarden.sim.scenario import load_scenario
from fedwarden.studies.runner import Cell, Table
from fedwarden.studies.tables import Result, Results, Sheet

from .item import Item, Sheets
from .pid_made import SETTINGS


def holdings(data: str) -> list[tuple[Cell, Table]]:
    """One cell: the data set and how many of its clients."""
    setting = SETTINGS[data]
    return [({"data": data, "seed": 0}, setting.scenario(setting.clients, 0, 1.0, {"preset": "none"}, 0, "cpu"))]


def count(table: Table) -> Result:
    """Samples by client and class."""
    scenario = load_scenario(table)
    data = load_data(scenario)
    labels, clients = data.y_train.numpy(), divide(data, np.zeros(0, dtype=np.int64), scenario)
    return {"counts": [np.bincount(labels[rows], minlength=data.classes).tolist() for rows in clients]}


def sheets(results: Results) -> list[Sheet]:
    rows = []
    for result in results:
        counts = np.array(result["result"]["counts"])
        for label, column in enumerate(counts.T):
            rows.append([str(label), str(column.min()), f"{column.mean():.1f}", str(column.max()), str(len(counts))])
    return [
        Sheet("counts", "Samples of a class that a client holds", (("class", "least", "mean", "most", "clients"), rows))
    ]


def _range(found: Sheets) -> tuple[int, int, int, int]:
    rows = found["counts"].records()
    return len(rows), int(rows[0]["clients"]), min(int(r["least"]) for r in rows), max(int(r["most"]) for r in rows)


def blood_hold(found: Sheets) -> str:
    classes, clients, least, most = _range(found)
    return (
        f"The {clients} clients hold {least} to {most} samples of each of {classes} classes: the division is "
        "ours, not the authors'."
    )


def pneumonia_hold(found: Sheets) -> str:
    first, second = found["counts"].records()
    return (
        f"The {first['clients']} clients are the authors' own: {first['least']} to {first['most']} samples of the "
        f"first class and {second['least']} to {second['most']} of the second."
    )


def blood(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    return holdings("blood")


def pneumonia(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    return holdings("pneumonia")


FIGURE_10 = Item(
    "figure-10", "The clients of BloodMNIST", "moderately different clients, 10 to 70 samples of each of 7 classes.",
    blood, sheets, blood_hold, "a second", run=count,
)  # fmt: skip
FIGURE_11 = Item(
    "figure-11", "The clients of PneumoniaMNIST", "200 to 300 samples of one class and 600 to 700 of the other.",
    pneumonia, sheets, pneumonia_hold, "a second", run=count,
)  # fmt: skip
