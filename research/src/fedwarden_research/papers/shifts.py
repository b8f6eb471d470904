"""What a curious participant can infer: shifts of the label ratio beside their nulls, in the settings of the paper.

Brunner and Montuoro, arXiv 2409.13875. A cell is one federation of one seed: its rounds before the change are played
once, then each change and each null continues from there, so that within a seed nothing else differs. Not stated there
and chosen here: batches of 32, a probe of 128 samples, the 12 inputs of Census, and what a ratio relative to an
unbalanced one is. The settings ``-own`` are those of the first study, before these were read from the paper: a probe of
the observer's own training samples, two epochs a round in one place too, Census one-hot with balanced classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch

from fedwarden.audit.answer import FRESH as FRESH
from fedwarden.audit.answer import STILL as STILL
from fedwarden.audit.auditor import ASKED, SOURCES
from fedwarden.audit.trend import departure
from fedwarden.core.config import parse
from fedwarden.core.registry import Spec
from fedwarden.sim.branches import Branch, Measures, ObserverSettings, rehearse
from fedwarden.sim.observers import Held
from fedwarden.sim.scenario import AttackConfig, load_scenario
from fedwarden.studies.runner import Cell, Table

SEVERITIES = (0.55, 0.6, 0.7, 0.8, 0.9, 1.0)
FEDERATIONS = ((2, 1), (3, 1), (5, 1), (10, 3))  # clients, and how many of them change
RESERVE = 2.3  # samples in store for each one that may be exchanged: enough of the rarer kind
OUTSIDER = "outsider"
TESTS = 2000
METRICS = ("cosine", "procrustes", "cmd", "procrustes_literal")
VALIDATION = "validation/loss/"


@dataclass(frozen=True)
class Setting:
    """A data set, its model, the rounds, the round of the change, and the samples of each of n clients."""

    dataset: Spec
    model: Spec
    rounds: int
    start: int
    sizes: Mapping[int, int]
    lr: float = 1e-4
    severities: tuple[float, ...] = SEVERITIES
    probe: int = 128
    held: Held = "own"
    base: float = 0.5  # share of even classes before the change
    larger: tuple[float, ...] = (0.7, 0.9)  # ratios that are tried among more clients
    alone: int = 2  # epochs a round of one model in one place

    def scenario(self, n: int, m: int, seed: int, device: str = "cpu", rounds: int | None = None) -> Table:
        """The federation without any change; m clients may change."""
        size, epochs = self.sizes[n], self.alone if n == 1 else 2
        return {
            "seed": seed,
            "rounds": rounds or self.start,
            "data": {
                "dataset": self.dataset, "clients": n, "reserve": round(RESERVE * m * size),
                "partition": {"name": "parity", "size": size, "even": self.base},
            },
            "model": self.model,
            "train": {
                "optimizer": "adam", "lr": self.lr, "epochs": epochs, "batch_size": 32, "workers": 1, "group": 1,
                "device": device,
            },
            "guard": {"preset": "none"},
        }  # fmt: skip

    def observing(self, observer: str, per_layer: bool = False) -> ObserverSettings:
        """How one observer looks."""
        metrics = ("cosine", "procrustes", "cmd") if self.held == "own" else METRICS
        sources = None if self.held == "own" else (*SOURCES, *ASKED)
        return ObserverSettings((observer,), self.probe, sources, metrics, per_layer, held=self.held)

    def cell(self, n: int, m: int, seed: int, last: int | None = None) -> Cell:
        """What identifies a run; results of other samples, or of fewer rounds, are not mixed with it."""
        return {"n": n, "m": m, "seed": seed} | ({"held": self.held, "last": last} if self.held != "own" else {})


class Kept(TypedDict):
    """What is kept of one branch: its readings by source, metric and layer, and the accuracy by round.

    The reading ``validation/loss/`` is the loss of the global model on test samples, beside the trend of its own past.
    """

    readings: dict[str, list[list[float]]]
    accuracy: dict[str, float]


class Continued(Kept):
    """A branch with the change that it has: its kind, and the share of even classes."""

    kind: str
    even: float | None


class Played(TypedDict):
    """What is kept of one cell: the rounds before the change, and each branch."""

    before: Kept
    branches: dict[str, Continued]


CENSUS = {1: 3900, 2: 3900, 3: 2600, 5: 1500, 10: 800}
PAPER = {1: 6700, 2: 6700, 3: 4400, 5: 2600, 10: 1300}
SETTINGS: Mapping[str, Setting] = {
    "mnist": Setting("mnist", "audit_cnn", 20, 11, PAPER, held="test", larger=(0.7,), alone=1),
    "fashion_mnist": Setting("fashion_mnist", "audit_cnn", 40, 21, PAPER, held="test", larger=(0.7,), alone=1),
    "census": Setting(
        {"name": "adult", "encode": "codes"}, "census_mlp", 100, 51, CENSUS, held="test", base=0.76, larger=(0.6,),
        alone=1,
    ),
    "cifar10": Setting(
        "cifar10", "resnet18", 20, 11, {1: 4000, 2: 4000, 3: 2600, 5: 1600, 10: 500}, severities=(0.7, 0.9), probe=64,
        held="test", larger=(0.7,), alone=1,
    ),
    "mnist-own": Setting("mnist", "audit_cnn", 20, 11, PAPER),
    "fashion_mnist-own": Setting("fashion_mnist", "audit_cnn", 40, 21, PAPER),
    "census-own": Setting("adult", "census_mlp", 100, 51, CENSUS),
    "mnist-mlp": Setting("mnist", {"name": "mlp", "hidden": [128]}, 20, 11, PAPER),
    "fashion-mlp": Setting("fashion_mnist", {"name": "mlp", "hidden": [128]}, 40, 21, PAPER),
    "mnist-small": Setting(
        "mnist", "audit_cnn", 20, 11, {n: d // 13 for n, d in PAPER.items()}, 5e-4, (0.7, 0.9, 1.0), probe=64
    ),
    "digits": Setting(
        "digits", {"name": "mlp", "hidden": [64]}, 20, 11, {1: 300, 2: 300, 3: 200, 5: 150, 10: 70}, 2e-3,
        SEVERITIES[:-1],  # among ten clients there are too few digits for 100-0
    ),
}  # fmt: skip


def ratio(even: float) -> str:
    """A share of even classes in words.

    >>> ratio(0.55)
    '55-45'
    """
    return f"{round(100 * even)}-{round(100 * (1 - even))}"


@dataclass(frozen=True)
class Change:
    """What may happen to the data: a kind of exchange and, where its size or aim is given by one, a share of even
    classes. ``str(change)`` is its name in results and tables.

    >>> str(Change("fresh", 0.7)), str(Change(STILL))
    ('fresh 70-30', 'no change')
    """

    kind: str
    even: float | None = None

    def __str__(self) -> str:
        return self.kind if self.even is None else f"{self.kind} {ratio(self.even)}"


def all_changes(severities: Sequence[float], partial: bool = True) -> list[Change]:
    """No change, an unshifted fresh swap, and for each severity the shift by fresh samples and by as few as it takes.

    The null of the latter is an unshifted swap of as many samples.
    """
    kinds = ("fresh", "partial", "partial swap") if partial else ("fresh",)
    return [Change(STILL), Change(FRESH), *(Change(kind, even) for even in severities for kind in kinds)]


def relative(even: float, base: float) -> float:
    """The share of even classes after a shift to a ratio that is meant relative to the one before.

        p' = p e / (p e + (1 - p) (1 - e)),   p before, e the ratio named

    Brunner and Montuoro, arXiv 2409.13875, section 5.3, say that 60-40 is relative to Census's 76-24, not how; here
    the odds are multiplied by e / (1 - e), which of balanced classes gives the ratio named.

    >>> relative(0.6, 0.5), round(relative(0.6, 0.76), 4), relative(1.0, 0.76)
    (0.6, 0.8261, 1.0)
    """
    return base * even / (base * even + (1 - base) * (1 - even))


def branches(
    start: int, clients: Sequence[int], severities: Sequence[float], partial: bool = True, base: float = 0.5
) -> dict[Change, list[Table]]:
    """Every change as attacks on the data of some clients that have a share ``base`` of even classes.

    All swaps draw the classes of either kind as the reserve has them, so that a shift and its null differ by the ratio
    of even to odd alone.

    >>> [str(change) for change in branches(11, [1], [0.7])]
    ['no change', 'fresh swap', 'fresh 70-30', 'partial 70-30', 'partial swap 70-30']
    """

    def attacks(change: Change) -> list[Table]:
        even = base if change.even is None else relative(change.even, base)
        options = {
            FRESH: {"even": base},
            "fresh": {"even": even},
            "partial": {"even": even, "exchange": 0.0},
            "partial swap": {"even": base, "exchange": even - base},
        }
        what = {"name": "label_shift", "clients": list(clients), "start": start}
        return [{**what, **options[change.kind]}] if change.kind in options else []

    return {change: attacks(change) for change in all_changes(severities, partial)}


def centralised(seeds: Sequence[int], device: str, setting: Setting) -> list[tuple[Cell, Table]]:
    """One model trained in one place and watched from outside, layer by layer, to the last round; 80-20."""
    return [
        (
            setting.cell(1, 1, seed, setting.rounds),
            {
                "scenario": setting.scenario(1, 1, seed, device, setting.rounds),
                "start": setting.start,
                "branches": branches(setting.start, [0], [0.8], setting.held == "own", setting.base),
                "observing": setting.observing(OUTSIDER, setting.held != "own"),
            },
        )
        for seed in seeds
    ]


def federated(
    seeds: Sequence[int],
    device: str,
    setting: Setting,
    federations: Sequence[tuple[int, int]] = FEDERATIONS[:1],
    severities: Sequence[float] | None = None,
    per_layer: bool = False,
    partial: bool = True,
    last: int | None = None,
) -> list[tuple[Cell, Table]]:
    """Client 0 watches while the last m of n clients change, to round ``last``, by default that of the change."""
    cells: list[tuple[Cell, Table]] = []
    for n, m in federations:
        for seed in seeds:
            tried = severities or setting.severities
            job = {
                "scenario": setting.scenario(n, m, seed, device, last),
                "start": setting.start,
                "branches": branches(setting.start, range(n - m, n), tried, partial, setting.base),
                "observing": setting.observing("0", per_layer),
            }
            cells.append((setting.cell(n, m, seed, last or setting.start), job))
    return cells


def layers(seeds: Sequence[int], device: str, setting: Setting) -> list[tuple[Cell, Table]]:
    return federated(seeds, device, setting, severities=(0.8,), per_layer=True)


def many(seeds: Sequence[int], device: str, setting: Setting) -> list[tuple[Cell, Table]]:
    """Every severity in the larger federations, the largest first."""
    return federated(seeds, device, setting, FEDERATIONS[:1:-1])


def scalability(seeds: Sequence[int], device: str, setting: Setting) -> list[tuple[Cell, Table]]:
    """Every number of clients at the paper's ratio, to the last round; the largest federation first."""
    if setting.held == "own":
        return federated(seeds, device, setting, FEDERATIONS, severities=setting.larger)
    return federated(seeds, device, setting, FEDERATIONS[::-1], setting.larger, partial=False, last=setting.rounds)


def run(job: Table, measures: Measures | None = None) -> Played:
    """Play one cell and return its readings as plain numbers."""
    torch.set_num_threads(1)
    changes = {str(change): [parse(AttackConfig, a) for a in attacks] for change, attacks in job["branches"].items()}
    before, found = rehearse(load_scenario(job["scenario"]), job["start"], changes, job["observing"], measures, TESTS)
    window = job["observing"].window
    kept = {c: _plain(found[str(c)], window, before.loss) for c in job["branches"]}
    branches: dict[str, Continued] = {str(c): {"kind": c.kind, "even": c.even, **k} for c, k in kept.items()}
    return {"before": _plain(before, window), "branches": branches}


def _plain(branch: Branch, window: int, before: Mapping[int, float] | None = None) -> Kept:
    readings: dict[str, list[list[float]]] = {}
    for seen in branch.seen.values():
        for o in seen:
            row = [o.round, *(_digits(x) for x in (o.value, o.expected, o.score, o.p)), float(o.alarm)]
            readings.setdefault(f"{o.source}/{o.metric}/{o.layer}", []).append(row)
    readings[VALIDATION] = validation(branch.loss, before or {}, window)
    return {"readings": readings, "accuracy": {str(t): round(a, 4) for t, a in branch.accuracy.items()}}


def validation(loss: Mapping[int, float], before: Mapping[int, float], window: int) -> list[list[float]]:
    """The validation loss of each round as a reading: round, value, what the rounds before led to expect, score, p.

    >>> [row[:3] for row in validation({3: 1.0, 4: 2.0}, {1: 3.0, 2: 2.0}, window=2)]
    [[3, 1.0, 1.0], [4, 2.0, 0.0]]
    """
    past = list(before.values())
    rows = []
    for t, value in loss.items():
        found = departure(value, np.array(past[-window:]))
        rows.append([t, *(_digits(x) for x in (value, found.expected, found.score, found.p)), 0.0])
        past.append(value)
    return rows


def _digits(value: float) -> float:
    return float(f"{value:.9g}")
