"""Measures against being read: how well a shift still shows under each, and what it costs in accuracy.

Every measure is in force from the first round on. A shift is told from an unshifted swap that comes in the same way, by
the farthest departure of any round from the change to the end, so that a change that is spread over rounds has as many
chances to show as a sudden one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from torch import Tensor

from fedwarden.audit.mitigations import add_noise, clip_and_noise, epsilon, smooth
from fedwarden.audit.verdict import leakage
from fedwarden.core.generators import torch_rng
from fedwarden.core.separation import auroc as separation
from fedwarden.core.stats import Scores
from fedwarden.sim.branches import Measures, ObserverSettings
from fedwarden.studies.runner import Cell, Table

from ..studies.pictures import curves
from ..studies.tables import Grid, Result, Results, Sheet, columns, confidence
from .shift_tables import auroc, departure, name
from .shifts import FRESH, STILL, Change, Setting, branches, run

EVEN = 0.8
SHIFT = str(Change("fresh", EVEN))
NORM = 0.6  # to which updates are clipped: about what they measure on digits in the round of the change
MEASURES: Mapping[str, tuple[float, ...]] = {
    "none": (0.0,),
    "noise at the client": (0.01, 0.03, 0.1, 0.3),
    "noise at the server": (0.03, 0.1, 0.3),
    "smoothing": (0.5, 0.9),
    "gradual change": (3, 9),
    "more clients": (5, 10),
}
UNITS = {
    "noise at the client": "multiplier",
    "noise at the server": "multiplier",
    "smoothing": "kept",
    "gradual change": "rounds below full",
    "more clients": "clients",
}
SHAPE, WEIGHT = "outputs/mean_logits/", "weights/procrustes/"


@dataclass(frozen=True)
class Measured:
    """A mitigation as it was measured: how well the shift still shows, and the accuracy it costs.

    >>> Measured("noise", 0.6, 0.04, 0.3, "multiplier").name
    'noise, 0.3 multiplier'
    """

    kind: str
    auroc: float
    accuracy_lost: float
    strength: float | None = None
    unit: str = ""

    @property
    def name(self) -> str:
        return self.kind if self.strength is None else f"{self.kind}, {self.strength:g} {self.unit}".rstrip()


def recommend(measured: Sequence[Measured], budget: float) -> Measured | None:
    """The mitigation under which the shift shows least, among those that cost at most ``budget`` accuracy.

    AUROC is taken as distance from one half. Of equals the cheaper one; None if all cost more.

    >>> found = [Measured("none", 0.95, 0.0), Measured("noise", 0.5, 0.04), Measured("smoothing", 0.7, 0.01)]
    >>> recommend(found, budget=0.02).name
    'smoothing'
    """
    affordable = [m for m in measured if m.accuracy_lost <= budget]
    return min(affordable, key=lambda m: (abs(m.auroc - 0.5), m.accuracy_lost), default=None)


class Smoothing:
    """Sends a moving average of the updates; remembers it."""

    def __init__(self, keep: float) -> None:
        self.keep = keep
        self.memory: Tensor | None = None

    def __call__(self, t: int, update: Tensor) -> Tensor:
        self.memory, sent = smooth(self.memory, update, self.keep)
        return sent


def noisy(noise: float, seed: int, t: int, update: Tensor) -> Tensor:
    """A client's update, clipped and with noise of its own."""
    return clip_and_noise(update, NORM, noise, torch_rng(seed, "client noise", t))


def noisy_average(deviation: float, seed: int, t: int, update: Tensor) -> Tensor:
    """The server's average with noise."""
    return add_noise(update, deviation, torch_rng(seed, "server noise", t))


def measures(kind: str, value: float, n: int, seed: int) -> Measures:
    """What the parties do; the last client is the one that changes, and the only one that defends itself."""
    client = str(n - 1)
    if kind == "noise at the client":
        return Measures({client: partial(noisy, value, seed)})
    if kind == "noise at the server":
        return Measures(publisher=partial(noisy_average, value * NORM / n, seed))
    if kind == "smoothing":
        return Measures({client: Smoothing(value)})
    return Measures()


def cells(seeds: Sequence[int], device: str, setting: Setting) -> list[tuple[Cell, Table]]:
    """Every measure at every strength; a shift to 80-20 of one client, its fresh swap, and no change."""
    found: list[tuple[Cell, Table]] = []
    for kind, seed in product(MEASURES, seeds):
        for value in MEASURES[kind]:
            n = int(value) if kind == "more clients" else 2
            changes = branches(setting.start, [n - 1], [EVEN], partial=False)
            if kind == "gradual change":
                changes = {name: [{**a, "ramp": int(value)} for a in change] for name, change in changes.items()}
            job = {
                "scenario": setting.scenario(n, 1, seed, device, setting.rounds),
                "start": setting.start,
                "branches": changes,
                "observing": ObserverSettings(("0",), setting.probe),
                "measure": (kind, value, n, seed),
            }
            found.append(({"kind": kind, "value": value, "seed": seed}, job))
    return found


def run_measured(job: Table) -> Result:
    """Play one cell; its result is the farthest departure of each source, and the last clean accuracy."""
    found = run(job, measures(*job["measure"]))
    return {
        branch: {
            "departure": {key: farthest(key, rows) for key, rows in kept["readings"].items()},
            "accuracy": list(kept["accuracy"].values())[-1],
        }
        for branch, kept in found["branches"].items()
    }


def farthest(key: str, rows: Sequence[Sequence[float]]) -> float:
    """The largest finite departure over rounds.

    >>> farthest("weights/cosine/", [[11, 2.0, 1.0, 0.0, 0.5, 0.0], [12, 4.0, 1.0, 0.0, 0.5, 0.0]])
    3.0
    """
    found = [departure(key, row) for row in rows]
    return max((x for x in found if math.isfinite(x)), default=math.nan)


def table(results: Results) -> Grid:
    """Per measure: how the shift shows, how any new samples show, and the accuracy."""
    rows = []
    for kind, value, found in _measured(results):
        how = [f"{value:g} {UNITS[kind]}" if kind in UNITS else "-"]
        if kind == "noise at the client":
            how[0] += f", epsilon {epsilon(value, 20):,.0f}"
        by_shift = leakage(_scores(found, SHIFT, SHAPE), {FRESH: _scores(found, FRESH, SHAPE)}, _rng())[FRESH]
        by_new = leakage(_scores(found, FRESH, WEIGHT), {STILL: _scores(found, STILL, WEIGHT)}, _rng())[STILL]
        lost, (highest, source) = _lost(results, found), _best(found)
        best = f"{highest:.2f} ({name(source)})"
        rows.append(
            [kind, *how, auroc(by_shift), best, auroc(by_new), confidence(_accuracy(found)), f"{100 * lost:.1f}"]
        )
    header = columns(
        "measure | strength | shift against fresh swap (mean logits) | the same, best of all sources | "
        "fresh swap against no change (weights, procrustes) | accuracy | points lost"
    )
    return header, rows


def measured(results: Results) -> list[Measured]:
    """Every measure with how well the shift still shows and what it costs; none before there is one to compare with."""
    known = _measured(results)
    if not any(kind == "none" for kind, *_ in known):
        return []
    return [
        Measured(kind, _best(f)[0], _lost(results, f), value if kind in UNITS else None, UNITS.get(kind, ""))
        for kind, value, f in known
    ]


def advice(results: Results) -> Grid:
    """The measure under which the shift shows least, for some budgets of accuracy."""
    found = measured(results)
    rows = []
    for budget in (0.0, 0.01, 0.03, 0.1):
        best = recommend(found, budget)
        rows.append([f"{100 * budget:g} points", "-" if best is None else f"{best.name} (AUROC {best.auroc:.2f})"])
    return ("accuracy that may be lost", "recommended"), rows


def sheets(results: Results) -> list[Sheet]:
    return [
        Sheet("measures", "How a shift shows under each measure", table(results)),
        Sheet("advice", "By the source that shows most", advice(results)),
    ]


def draw(results: Results, path: Path, title: str) -> Path:
    """Leakage over accuracy lost, a line per kind of measure."""
    lines: dict[str, dict[float, list[float]]] = {}
    for kind, value, found in _measured(results):
        place = 100 * _lost(results, found) + 1e-9 * value  # strengths that cost the same are points of their own
        lines.setdefault(kind, {})[place] = [_best(found)[0]]
    panels = {"best source, shift against an unshifted swap": lines}
    title = f"{title}: {len({r['cell']['seed'] for r in results})} seeds"
    curves(path, panels, title, "points of accuracy lost", "AUROC", strong=("none",))
    return path


def _measured(results: Results) -> list[tuple[str, float, list[Result]]]:
    """The results of each measure and strength, in the order of the seeds."""
    out: list[tuple[str, float, list[Result]]] = []
    for kind, values in MEASURES.items():
        for value in values:
            mine = [r for r in results if (r["cell"]["kind"], r["cell"]["value"]) == (kind, value)]
            if mine:
                out.append((kind, value, [r["result"] for r in sorted(mine, key=lambda r: int(r["cell"]["seed"]))]))
    return out


def _scores(found: Sequence[Result], branch: str, key: str) -> Scores:
    return np.array([f[branch]["departure"][key] for f in found], dtype=np.float64)


def _best(found: Sequence[Result]) -> tuple[float, str]:
    """The source that tells the shift from a fresh swap best, as an attacker would pick it, and its AUROC."""
    scored = {key: (_scores(found, SHIFT, key), _scores(found, FRESH, key)) for key in found[0][SHIFT]["departure"]}
    finite = {key: pair for key, pair in scored.items() if np.isfinite(np.concatenate(pair)).all()}
    return max((separation(*pair), key) for key, pair in finite.items())


def _accuracy(found: Sequence[Result]) -> list[float]:
    """The last accuracy, had nothing changed."""
    return [float(f[STILL]["accuracy"]) for f in found]


def _lost(results: Results, found: Sequence[Result]) -> float:
    free = next(f for kind, _, f in _measured(results) if kind == "none")
    return float(np.mean(_accuracy(free)) - np.mean(_accuracy(found)))


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)
