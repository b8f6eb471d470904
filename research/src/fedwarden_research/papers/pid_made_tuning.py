"""Figure 1 of PID-MADE: coefficients found by a tree-structured Parzen estimator, and how fast the model converges.

The authors retrain for every trial. Here distances are recorded once with everybody in the model, the search replays
them and maximises the share of client-rounds that are right (attackers out, honest clients in), and the best few are
retrained. Beside them: the coefficients with the best F1 of the excluded clients, as ``fedwarden tune`` finds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.tune import Grade, observe, search, to_tune, tunable
from fedwarden.studies.runner import Cell, Table

from ..studies.pictures import curves
from ..studies.tables import Result, Results, Sheet, interval
from .item import Item, Sheets
from .pid_made import SETTINGS, K, run
from .pid_made_convergence import first_rounds, number, over_rounds, spell

EXPERT = {"history.kp": 1.0, "history.ki": 0.5, "history.kd": 0.05}
FAST = 3  # of the settings found for speed are retrained
TRIALS = 200
ROUNDS = 20
SETTING = SETTINGS["femnist"]


def cells(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    guard = {"preset": "pid_made"}
    return [
        (
            {"data": "femnist", "seed": seed},
            {**SETTING.scenario(SETTING.clients, SETTING.attackers, 1.0, guard, seed, device), "rounds": ROUNDS},
        )
        for seed in seeds
    ]


def tuned(table: Table, trials: int = TRIALS) -> Result:
    """Search with both aims on one recording, and retrain with what was found."""
    torch.set_num_threads(1)
    scenario = to_tune(load_scenario(table))
    warden = scenario.guard.build()
    recorded = [observe(scenario, scenario.seed)]
    every = tunable(warden)
    options = {name: value for name, value in every.items() if name in EXPERT}
    found: dict[str, tuple[dict[str, float], Grade]] = {}
    fast = distinct(search(recorded, warden, options, trials, scenario.seed, speed))
    found["expert"] = next(pair for pair in fast if pair[0] == options)
    better = [pair for pair in fast if speed(pair[1]) > speed(found["expert"][1])]
    found |= {f"speed, number {i + 1}": pair for i, pair in enumerate(better[:FAST])}
    wide = search(recorded, warden, every, trials, scenario.seed, speed)[0]
    if speed(wide[1]) > speed(found["expert"][1]):
        found["speed, k too"] = wide
    found["F1"] = search(recorded, warden, options, trials, scenario.seed, lambda grade: grade.value)[0]
    return {name: {"values": v, "grade": asdict(g), "run": retrain(table, v)} for name, (v, g) in found.items()}


def speed(grade: Grade) -> float:
    """What a search for quick convergence maximises: attackers out early and for good, honest clients in."""
    return -grade.let_in / max(grade.attacks, 1) - grade.left_out / max(grade.honest, 1)


def distinct(tried: Sequence[tuple[dict[str, float], Grade]]) -> list[tuple[dict[str, float], Grade]]:
    """What was tried, of settings that exclude the same clients in the same number of rounds only the first."""
    known: dict[Grade, tuple[dict[str, float], Grade]] = {}
    expert = [pair for pair in tried if pair[0] == EXPERT]
    for pair in [*expert, *tried]:
        known.setdefault(pair[1], pair)
    return [pair for pair in tried if known[pair[1]] == pair]


def retrain(table: Table, values: Mapping[str, float]) -> Result:
    options = {name.partition(".")[2]: value for name, value in values.items()}
    return run({**table, "guard": {"preset": "pid_made", "options": options}})


def sheets(results: Results) -> list[Sheet]:
    rows = []
    for name in dict.fromkeys(name for r in results for name in r["result"]):
        found = [r["result"][name] for r in results if name in r["result"]]
        runs = [f["run"] for f in found]
        row = [name, *(" ".join(f"{f['values'].get(key, K):.3g}" for f in found) for key in (*EXPERT, "rule.k"))]
        row += [f"{np.mean([f['grade'][key] for f in found]):.2f}" for key in ("f1", "let_in", "left_out")]
        for what in ("accuracy", "loss"):
            row.append(spell(float(np.median(first_rounds(runs, "honest", what, SETTING.levels[what]))), ROUNDS))
        rows.append([*row, interval([r["honest_loss"][-1] for r in runs]), str(len(found))])
    header = (
        "setting", "K_P", "K_I", "K_D", "k", "F1 on replay", "attacker-rounds let in", "honest rounds left out",
        f"rounds to {SETTING.accuracy:g}", f"rounds to a loss of {SETTING.loss:g}", "last loss", "seeds",
    )  # fmt: skip
    return [
        Sheet("settings", "FEMNIST, 2 of 20 flip: coefficients of each seed, replayed and retrained", (header, rows))
    ]


def holds(found: Sheets) -> str:
    """Rounds with the expert's coefficients, with the quickest of those found, and with those of the best F1."""
    rows = {r["setting"]: r for r in found["settings"].records()}
    column = f"rounds to {SETTING.accuracy:g}"
    fast = {name: number(r[column]) for name, r in rows.items() if name.startswith("speed, number")}
    parts = [f"the expert's coefficients need {rows['expert'][column]} rounds to {SETTING.accuracy:g}"]
    if fast:
        best = min(fast, key=lambda name: fast[name])
        parts.append(f"the quickest found by the search {rows[best][column]}")
    else:
        parts.append("the search found nothing quicker on replay")
    if "speed, k too" in rows:
        parts.append(f"with k searched too {rows['speed, k too'][column]}")
    parts.append(f"those of the best F1 {rows['F1'][column]}")
    return f"On honest clients {', '.join(parts)}."


def draw(results: Results, folder: Path, stem: str) -> list[Path]:
    names = dict.fromkeys(name for r in results for name in r["result"])
    lines = {n: over_rounds([r["result"][n]["run"] for r in results if n in r["result"]], "honest_loss") for n in names}
    path = folder / f"{stem}.svg"
    curves(
        path, {"FEMNIST, 2 of 20 flip": lines}, "Loss of honest clients by coefficients", "round", "loss", ("expert",)
    )
    return [path]


FIGURE_1 = Item(
    "figure-1",
    "Coefficients and the speed of convergence",
    "coefficients found by a Bayesian search converge faster than the expert's.",
    cells,
    sheets,
    holds,
    "half an hour on 2 cores; needs the extra tune",
    says={"the expert's K_P": 1, "K_I": 0.5, "K_D": 0.05},
    chosen=(
        "the search replays recorded distances; only the best few are retrained",
        "coefficients from 0 to 2, k from .5 to 4",
        f"{TRIALS} trials",
    ),
    run=tuned,
    pictures=draw,
)
