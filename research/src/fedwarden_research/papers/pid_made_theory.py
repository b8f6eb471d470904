"""Lemma 2 and theorems 3 and 4 of PID-MADE, checked on every round of recorded runs.

The bounds as functions, then the runs: clients of digits, some of which flip their labels, and everybody in the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedwarden.core.types import State
from fedwarden.history.pid import PID
from fedwarden.sim.data.world import Rows
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario
from fedwarden.studies.runner import Cell, Table

from ..studies.tables import Grid, Result, Results, Sheet, select
from .item import Item, Sheets

CLIENTS, FLIPPING, ROUNDS, LONG = 20, (2, 6), 20, 60
SLACK = 1 + 1e-9  # rounding


def shift_bound(f: int, n: int, largest: float) -> float:
    """How far f of n clients can move the mean of all from the mean of the others.

        ||mu - mu_G|| <= 2 f / n * zeta,   zeta the largest norm of a client's weights

    PID-MADE, lemma 2 and eq. 32.

    >>> shift_bound(1, 4, 3.0)
    1.5
    """
    return 2 * f / n * largest


def rate_bound(good: int, n: int) -> float:
    """How much nearer to the optimum the model without the others is said to be.

        ||w_G - w*|| <= C ||w_A - w*||,   C = sqrt(|G| / |A|)

    PID-MADE, theorem 3. Its proof puts the squared distances of the clients in place of the model's own distance.

    >>> rate_bound(9, 16)
    0.75
    """
    return math.sqrt(good / n)


def score_bound(t: int, deviation: float, shift: float) -> float:
    """What the PID score of a good client cannot exceed in round t.

        u_t <= t (Delta_max + shift)

    PID-MADE, theorem 4, with the shift of lemma 2 for O(f / N). It needs K_P = 1, K_I <= 1 and K_D <= 1, which the
    paper does not say: its proof drops the derivative term, which may be K_D Delta_max.

    >>> score_bound(3, 1.0, 0.5)
    4.5
    """
    return t * (deviation + shift)


def spread(rows: Tensor) -> float:
    """The mean squared distance to the mean.

    >>> spread(torch.tensor([[0.0], [2.0]]))
    1.0
    """
    return float((rows - rows.mean(dim=0)).square().sum(dim=1).mean())


class Recorder:
    """Trains as the federation does, in this process, and keeps the clients' models of the last round."""

    def __init__(self, federation: Federation) -> None:
        self.engine = federation.engine
        self.models = torch.empty(0)

    def train(self, params: Tensor, round: int, client_ids: Sequence[str], changed: Mapping[str, Rows]) -> Tensor:
        out = torch.empty(len(client_ids), len(params))
        self.engine.train(params, round, client_ids, out, changed)
        self.models = out.double()
        return out


def scenario(f: int, seed: int, rounds: int) -> Table:
    return {
        "seed": seed,
        "rounds": rounds,
        "data": {"dataset": "digits", "clients": CLIENTS},
        "model": {"name": "mlp", "hidden": [64]},
        "train": {"lr": 0.1, "momentum": 0.9, "epochs": 2, "batch_size": 16, "workers": 1},
        "attacks": [{"name": "label_flip", "count": f}],
        "guard": {"preset": "none"},
    }


def cells(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    return [
        ({"attackers": f, "seed": s}, {"long": scenario(0, s, LONG), "run": scenario(f, s, ROUNDS)})
        for f in FLIPPING
        for s in seeds
    ]


def run(table: Table) -> Result:
    """Both sides of each bound in every round; the optimum is the model that the same clients reach unpoisoned."""
    torch.set_num_threads(1)
    best = Federation(load_scenario(table["long"]))
    for _ in best.play(Recorder(best)):
        pass
    optimum = best.params.double()
    federation = Federation(load_scenario(table["run"]))
    recorder = Recorder(federation)
    good = torch.tensor([c not in federation.truth for c in federation.clients])
    n, f = len(good), int((~good).sum())
    history = PID()
    state: State = {}
    worst = largest = 0.0
    sides: dict[str, list[tuple[float, float]]] = {"lemma 2": [], "eq. 18": [], "theorem 3": [], "theorem 4": []}
    for record in federation.play(recorder):
        rows = recorder.models
        every, ours = rows.mean(dim=0), rows[good].mean(dim=0)
        largest = max(largest, float(rows.norm(dim=1).max()))
        sides["lemma 2"].append((float((every - ours).norm()), shift_bound(f, n, float(rows.norm(dim=1).max()))))
        sides["eq. 18"].append((spread(rows[good]), spread(rows)))
        far = float((every - optimum).norm())
        sides["theorem 3"].append((float((ours - optimum).norm()), rate_bound(n - f, n) * far))
        state, scores = history.step(state, federation.clients, (rows - every).norm(dim=1).numpy())
        worst = max(worst, float((rows[good] - ours).norm(dim=1).max()))
        bound = score_bound(record.round, worst, shift_bound(f, n, largest))
        sides["theorem 4"].append((float(scores[good.numpy()].max()), bound))
    return {name: [[float(f"{x:.6g}") for x in pair] for pair in pairs] for name, pairs in sides.items()}


def bounds_table(results: Results, name: str) -> Grid:
    """How often a bound holds, and how near it comes: left side over right side."""
    rows = []
    for f in FLIPPING:
        if found := select(results, {"attackers": f}):
            pairs = np.array([pair for r in found for pair in r[name]])
            ratio, held = pairs[:, 0] / pairs[:, 1], pairs[:, 0] <= pairs[:, 1] * SLACK
            spreads = [f"{x:.3g}" for x in (ratio.min(), np.median(ratio), ratio.max())]
            rows.append([f"{f} of {CLIENTS}", f"{100 * held.mean():.0f}", *spreads, str(len(held)), str(len(found))])
    return ("flip", "holds in % of the rounds", "least ratio", "median", "largest", "rounds", "seeds"), rows


def lemma_sheets(results: Results) -> list[Sheet]:
    return [Sheet("shift", "The shift of the mean over its bound", bounds_table(results, "lemma 2"))]


def rate_sheets(results: Results) -> list[Sheet]:
    return [
        Sheet(
            "spread",
            "Mean squared distance to the mean: good clients over all (eq. 18)",
            bounds_table(results, "eq. 18"),
        ),
        Sheet(
            "rate",
            "Distance of the good clients' mean to the optimum over its bound",
            bounds_table(results, "theorem 3"),
        ),
    ]


def score_sheets(results: Results) -> list[Sheet]:
    return [
        Sheet("scores", "The largest PID score of a good client over its bound", bounds_table(results, "theorem 4"))
    ]


def _held(rows: Sequence[Mapping[str, str]]) -> str:
    first, *rest = rows
    told = [f"{first['holds in % of the rounds']} % of the rounds at {first['flip']}"]
    return " and ".join([*told, *(f"{r['holds in % of the rounds']} % at {r['flip']}" for r in rest)])


def lemma_hold(sheets: Sheets) -> str:
    rows = sheets["shift"].records()
    near = ", ".join(r["largest"] for r in rows)
    return f"The bound holds in {_held(rows)}; the shift reaches at most {near} of it, so it is far from tight."


def rate_hold(sheets: Sheets) -> str:
    return (
        f"Leaving out the attackers lessens the spread of the clients in {_held(sheets['spread'].records())}; that "
        f"the model is nearer to the optimum by that factor holds in {_held(sheets['rate'].records())}. The proof "
        "takes the clients' spread for the model's distance."
    )


def score_hold(sheets: Sheets) -> str:
    rows = sheets["scores"].records()
    near = ", ".join(r["largest"] for r in rows)
    return f"The bound holds in {_held(rows)}; the scores reach at most {near} of it: no threshold."


CHOSEN = (
    f"digits, {CLIENTS} clients, an MLP, {ROUNDS} rounds in which no client is excluded",
    f"the optimum is the model of the same clients without attackers after {LONG} rounds",
)
ITEMS = tuple(
    Item(
        name, title, claim, cells, sheets, holds, "a minute on 2 cores",
        chosen=CHOSEN if name == "lemma-2" else ("as for lemma 2",), run=run, runs="pid-made-bounds",
    )
    for name, title, claim, sheets, holds in (
        (
            "lemma-2", "The shift of the centroid",
            "f of N clients move the mean by at most 2 f / N times the largest norm.", lemma_sheets, lemma_hold,
        ),
        (
            "theorem-3", "Nearer to the optimum", "without anomalous clients the model is nearer to the optimum by the "
            "factor sqrt(|G| / |A|).", rate_sheets, rate_hold,
        ),
        (
            "theorem-4", "The largest score of a good client", "the score stays below t (Delta_max + O(f / N)).",
            score_sheets, score_hold,
        ),
    )
)  # fmt: skip
