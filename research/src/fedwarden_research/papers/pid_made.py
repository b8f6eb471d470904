"""PID-MADE: what its authors report, their settings, and one run of them with every round's numbers kept.

The paper: Boosting Federated Model Convergence with Anomaly Detection and Exclusion. Its figures are drawings without
numbers, so what stands here as data is what its text and tables say. Optimizer, epochs, coefficients and k = 2.33 "from
round 2 on" are not in the paper but in the configuration of the authors' code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedwarden.core.registry import Spec
from fedwarden.sim.evaluation import measure, questions
from fedwarden.sim.federation import Federation
from fedwarden.sim.metrics import detection
from fedwarden.sim.scenario import load_scenario
from fedwarden.studies.runner import Cell, Table

from ..studies.plan import only_by
from ..studies.tables import Result

Guard = Mapping[str, Any]
Case = tuple[str, int, int, float]
"""Data, clients, how many of them flip labels, and the share of their labels that they flip."""

ROUNDS_TO_ACCURACY: Mapping[str, Mapping[str, int]] = {  # section 5, on figure 2
    "its": {"PID-MADE": 5, "Krum": 6, "Multi-Krum": 9, "RFA": 6, "Bulyan": 6},
    "pneumonia": {"PID-MADE": 8, "Krum": 9},
    "femnist": {"PID-MADE": 15, "Krum": 29},
}
ROUNDS_TO_LOSS: Mapping[str, Mapping[str, int]] = {
    "its": {"PID-MADE": 5},
    "pneumonia": {"PID-MADE": 4, "Krum": 4},
    "femnist": {"PID-MADE": 17, "Krum": 35},
}
TABLE_4: Mapping[float, tuple[int, int, float, float]] = {  # share of labels: FP, FN, accuracy, FedAvg's accuracy
    0.1: (0, 3, 96.8, 93.22),
    0.5: (0, 1, 95.7, 92.83),
    1.0: (0, 0, 96.8, 89.90),
}
TABLE_3: Mapping[int, tuple[float, float]] = {  # clients: ms of PID, ms of RFA
    5: (2.225, 88.404), 6: (2.394, 75.425), 7: (2.160, 75.405), 8: (2.575, 75.462), 9: (2.602, 93.799),
    10: (2.757, 83.496), 11: (3.051, 95.252), 12: (3.348, 99.076), 13: (3.771, 106.084), 14: (3.752, 106.784),
    15: (4.126, 116.48), 16: (4.260, 112.684), 17: (4.196, 118.06), 18: (4.329, 132.287), 19: (4.559, 130.349),
    20: (4.767, 142.596),
}  # fmt: skip
K = 2.33
START = 2  # the round from which on clients are excluded


@dataclass(frozen=True)
class Setting:
    """One of the authors' data sets with their training, and the levels whose first round counts.

    ``accuracy`` is the paper's; ``loss`` is a mean cross-entropy and ours, but for FEMNIST: see figure 2.
    """

    dataset: Spec
    clients: int
    attackers: int
    rounds: int
    accuracy: float
    loss: float
    epochs: int = 3
    ki: float = 0.5
    model: Spec = "pid_made_cnn"
    partition: Spec = "given"

    @property
    def levels(self) -> Mapping[str, float]:
        return {"accuracy": self.accuracy, "loss": self.loss}

    def scenario(self, n: int, f: int, fraction: float, guard: Guard, seed: int, device: str) -> Table:
        """Their clients, CNN, Adam and batches; the first f clients flip their labels."""
        return {
            "seed": seed,
            "rounds": self.rounds,
            "checkpoint_every": self.rounds,
            "data": {"dataset": self.dataset, "partition": self.partition, "clients": n, "validation": 0.1},
            "model": self.model,
            "train": {
                "optimizer": "adam", "lr": 1e-3, "batch_size": 10, "epochs": self.epochs, "workers": 1,
                "device": device,
            },
            "attacks": [{"name": "label_flip", "count": f, "fraction": fraction}],
            "guard": guard,
        }  # fmt: skip


NEARLY = {"name": "dirichlet", "alpha": 20.0}  # 10 to 70 samples of most classes to each of 40 clients, as there
SETTINGS: Mapping[str, Setting] = {
    "its": Setting("its_stop_sign", 8, 1, 15, 0.9, 0.2, epochs=4, ki=0.6),
    "pneumonia": Setting("pneumoniamnist", 8, 1, 20, 0.98, 0.2),
    "femnist": Setting({"name": "femnist_digits", "invert": False}, 20, 2, 40, 0.9, 0.2),
    "femnist-inverted": Setting("femnist_digits", 20, 2, 40, 0.9, 0.2),
    "blood": Setting("bloodmnist", 40, 5, 30, 0.85, 0.5, model="pid_made_cnn_large", partition=NEARLY),
}


RULES: Mapping[str, Callable[[Setting, int], Guard]] = {  # those that ask for the number of attackers are told it
    "PID-MADE": lambda s, f: {"preset": "pid_made", "options": {"ki": s.ki}},
    "auto": lambda s, f: {"preset": "auto"},
    "FedAvg": lambda s, f: {"preset": "none"},
    "Krum": lambda s, f: only_by("krum", f=f),
    "Multi-Krum": lambda s, f: only_by("multi_krum", f=f),
    "RFA": lambda s, f: only_by("geometric_median"),
    "Bulyan": lambda s, f: only_by("bulyan", f=f),
    "median": lambda s, f: only_by("median"),
    "trimmed mean": lambda s, f: only_by("trimmed_mean", b=f),
}
GUARDS = ("FedAvg", "PID-MADE", "auto")


def cells(cases: Sequence[Case], rules: Sequence[str], seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    """Every case under every rule."""
    found: list[tuple[Cell, Table]] = []
    for data, n, f, fraction in cases:
        setting = SETTINGS[data]
        for rule in rules:
            for seed in seeds:
                cell = {"data": data, "clients": n, "attackers": f, "fraction": fraction, "rule": rule, "seed": seed}
                guard = RULES[rule](setting, f)
                found.append((cell, setting.scenario(n, f, fraction, guard, seed, device)))
    return found


def run(table: Table) -> Result:
    """Play a scenario; of every round clean accuracy and loss, those on the clients' own validation data, and verdicts.

    ``honest`` averages over the honest clients, ``theirs`` over the clients not excluded, poisoned labels included, as
    the authors do. ``wrong`` and ``let_in`` count honest clients left out and attackers in the model.
    """
    torch.set_num_threads(1)
    federation = Federation(load_scenario(table))
    liars = federation.truth
    found: dict[str, list[float]] = {}
    records = []
    for record in federation.play():
        records.append(record)
        metrics = record.metrics
        own = own_measures(federation)
        honest = [own[c] for c in own if c not in liars]
        theirs = [own[c] for c in own if federation.warden.asks(c)]
        for name, values in (("honest", honest), ("theirs", theirs)):
            for part, column in zip(("accuracy", "loss"), zip(*values, strict=True), strict=True):
                found.setdefault(f"{name}_{part}", []).append(round(float(np.mean(column)), 4))
        found.setdefault("accuracy", []).append(round(metrics["accuracy"], 4))
        found.setdefault("loss", []).append(round(metrics["loss"], 4))
        found.setdefault("wrong", []).append(metrics.get("false_exclusions", 0.0))
        found.setdefault("let_in", []).append(metrics.get("let_in", 0.0))
    seen = detection(records, liars)
    return {**found, "caught": len(seen.caught), "wronged": len(seen.wronged), "excluded": seen.first_excluded}


def own_measures(federation: Federation) -> dict[str, tuple[float, float]]:
    """Accuracy and loss of the global model on what each client holds back, labels as the client has them."""
    federation.model.load_state_dict(federation.engine.layout.unflatten(federation.params))
    x, y, task = federation.world.x, federation.world.y, federation.task
    found = {}
    for client, rows in federation.world.held_in(federation.round).items():
        if len(rows):
            asked = questions(task, x[rows], y[rows], torch.Generator(), federation.device)
            metrics = measure(task, federation.model, asked)
            found[client] = metrics["accuracy"], metrics["loss"]
    return found
