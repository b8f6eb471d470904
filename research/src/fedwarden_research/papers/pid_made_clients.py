"""Figures 9 to 11 of PID-MADE: the topics of the clients of its language study, and the classes that others hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedwarden.sim.data.world import divide, load_data
from fedwarden.sim.scenario import load_scenario
from fedwarden.studies.runner import Cell, Table

from ..datasets import topics
from ..studies.pictures import curves
from ..studies.tables import Result, Results, Sheet
from .item import Item, Sheets
from .pid_made import SETTINGS
from .pid_made_text import CLEAN, scenario


def holdings(data: str) -> list[tuple[Cell, Table]]:
    """One cell: the data set and how many of its clients."""
    setting = SETTINGS[data]
    return [({"data": data, "seed": 0}, setting.scenario(setting.clients, 0, 1.0, {"preset": "none"}, 0, "cpu"))]


def count(table: Table) -> Result:
    """Samples by client and class."""
    read = load_scenario(table)
    data = load_data(read)
    labels, clients = data.y_train.numpy(), divide(data, np.zeros(0, dtype=np.int64), read)
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


def topic_cells(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    """One cell: the clients' texts."""
    return [({"seed": 0}, scenario(CLEAN, 0, "cpu"))]


def count_topics(table: Table) -> Result:
    """Answers and texts of each client, and how alike their words are: the cosine of the roots of their counts."""
    data = load_data(load_scenario(table))
    assert data.clients is not None
    assert data.tokens is not None
    words = np.array([np.bincount(data.x_train[rows].flatten(), minlength=data.classes) for rows in data.clients])
    words[:, list(data.tokens.special)] = 0
    rare = np.sqrt(words)  # frequent words, which all share, weigh less
    rare = rare / np.linalg.norm(rare, axis=1, keepdims=True)
    return {
        "topics": topics(),
        "texts": [len(rows) for rows in data.clients],
        "cosine": (rare @ rare.T).round(4).tolist(),
    }


def topic_sheets(results: Results) -> list[Sheet]:
    found = results[0]["result"]
    rows = [
        [str(client), topic, f"{answers:,}", f"{characters:,}", f"{texts:,}"]
        for (client, topic, answers, characters), texts in zip(found["topics"], found["texts"], strict=True)
    ]
    header = ("client", "topic", "answers", "characters", "training texts")
    alike = [
        [topic, *(f"{v:.2f}" for v in row)]
        for (_, topic, *_), row in zip(found["topics"], found["cosine"], strict=True)
    ]
    return [
        Sheet("clients", "What the clients hold", (header, rows)),
        Sheet(
            "alike", "How alike the clients' words are: cosine of the square roots of their counts",
            (("topic", *(f"client {c}" for c in range(len(rows)))), alike),
        ),
    ]  # fmt: skip


def topic_holds(sheets: Sheets) -> str:
    """Which pairs of topics are most alike, and the spread of sizes."""
    sizes = [int(r["training texts"].replace(",", "")) for r in sheets["clients"].records()]
    rows = [list(r.values()) for r in sheets["alike"].records()]
    names = [row[0] for row in rows]
    pairs = {(names[i], names[j]): float(rows[i][j + 1]) for i in range(len(rows)) for j in range(i)}
    most, least = max(pairs, key=lambda p: pairs[p]), min(pairs, key=lambda p: pairs[p])
    return (
        f"Eight topics of {min(sizes):,} to {max(sizes):,} training texts. Some are alike: {most[1]} and {most[0]} "
        f"most ({pairs[most]:.2f}), {least[1]} and {least[0]} least ({pairs[least]:.2f})."
    )


def draw_topics(results: Results, folder: Path, stem: str) -> list[Path]:
    """How alike every pair of clients is."""
    found = results[0]["result"]
    names = [f"{client}: {topic}" for client, topic, *_ in found["topics"]]
    lines = {
        name: {other: [v] for other, v in zip(names, row, strict=True) if other != name}
        for name, row in zip(names, found["cosine"], strict=True)
    }
    path = folder / f"{stem}.svg"
    curves(path, {"cosine of the square roots of word counts": lines}, "Topics of the clients", "", "cosine")
    return [path]


FIGURE_9 = Item(
    "figure-9", "The topics of the language clients",
    "each client has a topic of its own, and some topics share similarities.",
    topic_cells, topic_sheets, topic_holds, "a minute on 1 core", run=count_topics, pictures=draw_topics, seeds=1,
)  # fmt: skip
