"""Figure 5 of PID-MADE: masked language modelling among eight topic clients, one of which trains on noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwarden.core.registry import make
from fedwarden.studies.runner import Cell, Table, played

from ..studies.pictures import curves
from ..studies.tables import Grid, Result, Results, Sheet, columns, interval, select
from .item import Item, Sheets

CLIENTS, ROUNDS, START = 8, 8, 2
HONEST = tuple(range(1, CLIENTS))
CLEAN, ATTACKED, SLOW = "FedProx, no attack", "FedProx", "FedProx, the authors' learning rate"
RATE, THEIRS = 5e-4, 5e-5
PID = {"signal": "centroid_distance", "history": "pid", "rule": "k_sigma", "start_round": START}
SEEN: tuple[Table, ...] = (
    {**PID, "name": "PID"},
    {**PID, "signal": {"name": "centroid_distance", "centre": "geometric_median"}, "name": "PID, geometric median"},
    {"signal": {"name": "divergence", "probe": 32}, "rule": "robust_z", "start_round": 1, "name": "divergence"},
    {"signal": "direction", "rule": "robust_z", "start_round": 1, "name": "direction"},
    {"signal": {"name": "probe_loss", "probe": 32}, "rule": "robust_z", "start_round": 1, "name": "probe loss"},
)
OBSERVED: Table = {"preset": "none", "watches": SEEN, "policy": "observe"}
DEFENCES: Mapping[str, Table] = {
    CLEAN: OBSERVED,
    ATTACKED: OBSERVED,
    "PID-MADE + FedProx": {"preset": "pid_made"},
    "PID-MADE + FedProx, k = 2": {"preset": "pid_made", "options": {"k": 2.0}},
    "auto": {"preset": "auto"},
    "Krum": {"preset": "none", "aggregator": {"name": "krum", "f": 1}},
    "Bulyan": {"preset": "none", "aggregator": {"name": "bulyan", "f": 1}},
    "RFA": {"preset": "none", "aggregator": "geometric_median"},
    SLOW: OBSERVED,
    "PID-MADE + FedProx, the authors' learning rate": {"preset": "pid_made"},
}
RULES: Mapping[str, Table] = {
    "mean + 2.33 sigma": {"name": "k_sigma", "k": 2.33},
    "Cantelli, alpha .1": {"name": "cantelli", "alpha": 0.1},
    "Cantelli, alpha .2": {"name": "cantelli", "alpha": 0.2},
    "Cantelli, alpha .25": {"name": "cantelli", "alpha": 0.25},
    "Cantelli, alpha .3": {"name": "cantelli", "alpha": 0.3},
    "Gaussian, alpha .05": {"name": "gaussian", "alpha": 0.05},
    "Gaussian, alpha .1": {"name": "gaussian", "alpha": 0.1},
    "median + 6 MAD": {"name": "robust_z", "limit": 6.0},
    "median + 3 MAD": {"name": "robust_z", "limit": 3.0},
    "GESD, alpha .05": {"name": "gesd", "alpha": 0.05},
}
COEFFICIENTS = ((1.0, 0.0, 0.0), (1.0, 0.5, 0.05), (1.0, 1.0, 0.05), (1.0, 0.5, 0.5))

Array = NDArray[np.float64]


def deviations(r: float, n: int) -> float:
    """How far one of n values lies above their mean, in their deviations, if r of the others' above the others' mean.

        z = sqrt(n - 1) r / sqrt(n + r^2)  <  sqrt(n - 1)

    From mean = m + g / n and variance = (n-1)/n s^2 + (n-1)/n^2 g^2, for n - 1 values of mean m and deviation s and one
    at m + g, with r = g / s.

    >>> values = np.array([1.0, 3.0, 8.0])                         # 6 above a mean of 2, with deviation 1
    >>> round(deviations(6.0, 3), 6) == round(float((8 - values.mean()) / values.std()), 6)
    True
    """
    return math.sqrt(n - 1) * r / math.sqrt(n + r * r)


def needed(k: float, n: int) -> float:
    """The r from which on one of n values exceeds mean + k sigma; infinite where none does, from k = sqrt(n - 1) on.

    >>> round(deviations(needed(2.33, 8), 8), 6), needed(3.0, 8)
    (2.33, inf)
    """
    return k * math.sqrt(n / (n - 1 - k * k)) if k * k < n - 1 else math.inf


def scenario(defence: str, seed: int, device: str) -> Table:
    """Eight topic clients with adapters; the first trains on noise, but for one defence."""
    return {
        "seed": seed,
        "rounds": ROUNDS,
        "checkpoint_every": ROUNDS,
        "task": "masked_lm",
        "data": {
            "dataset": {"name": "medquad", "tested": list(HONEST)}, "partition": "given", "clients": CLIENTS,
            "validation": 0.05, "reserve": 32, "probe": 32,
        },
        "model": {"name": "masked_lm", "mixed": device != "cpu"},
        "train": {
            "optimizer": "adam", "lr": THEIRS if "learning rate" in defence else RATE, "batch_size": 16, "steps": 60,
            "proximal": 0.01, "workers": 1, "device": device,
        },
        "attacks": [] if defence == CLEAN else [{"name": "random_masking", "clients": [0]}],
        "guard": dict(DEFENCES[defence]),
    }  # fmt: skip


def cells(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    """Every defence, and nobody attacking."""
    return [({"defence": d, "seed": s}, scenario(d, s, device)) for s, d in product(seeds, DEFENCES)]


def run(table: Table) -> Result:
    """Metrics, weights and what every watch saw, by round."""
    result = played(table)
    records = result.records
    found: dict[str, Any] = {
        name: [r.metrics.get(name) for r in records] for name in ("accuracy", "loss", "clients_accuracy")
    }
    found["weight"] = [dict(zip(r.client_ids, r.weights.tolist(), strict=True)).get("0", 0.0) for r in records]
    found["excluded"] = dict(result.detection.first_excluded)
    found["watches"] = {
        w.name: {
            "signal": [_by_client(r.client_ids, _watch(r, w.name).signal) for r in records],
            "scores": [_by_client(r.client_ids, _watch(r, w.name).scores) for r in records],
            "threshold": [_finite(_watch(r, w.name).threshold) for r in records],
        }
        for w in records[0].watches
    }
    return found


def _watch(record: Any, name: str) -> Any:
    return next(w for w in record.watches if w.name == name)


def _by_client(ids: Sequence[str], values: Array) -> dict[str, float | None]:
    return {c: _finite(v) for c, v in zip(ids, values.tolist(), strict=True)}


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def seen(result: Result, watch: str, what: str = "signal") -> Array:
    """(rounds, clients) of a watch of a run in which nobody was excluded."""
    rounds = result["watches"][watch][what]
    return np.array([[values[str(c)] for c in range(CLIENTS)] for values in rounds], dtype=np.float64)


def pid_scores(distances: Array, kp: float, ki: float, kd: float) -> Array:
    """PID scores (rounds, clients) of distances."""
    history = make("history", "pid", kp=kp, ki=ki, kd=kd)
    state, found = history.init(), []
    for values in distances:
        state, scores = history.step(state, tuple(map(str, range(values.size))), values)
        found.append(scores)
    return np.array(found)


def excluded_by(rule: Any, scores: Array) -> dict[int, int]:
    """The round in which each client is excluded for good, judged among those who are left, from round 2 on."""
    gone: dict[int, int] = {}
    for t, values in enumerate(scores[START - 1 :], START):
        left = [c for c in range(values.size) if c not in gone]
        verdict = rule(values[left], t - START + 1)
        gone |= {c: t for c, flagged in zip(left, verdict.flagged, strict=True) if flagged}
    return gone


def defences_table(results: Results) -> Grid:
    """The last round of each defence, and what became of the attacker and of the others."""
    rows = []
    for defence in DEFENCES:
        if found := select(results, {"defence": defence}):
            rounds = [r["excluded"]["0"] for r in found if "0" in r["excluded"]]
            honest = [len(set(r["excluded"]) - ({"0"} if defence != CLEAN else set())) for r in found]
            rows.append(
                [
                    defence, *(interval([r[what][-1] for r in found]) for what in ("accuracy", "loss")),
                    interval([r["clients_accuracy"][-1] for r in found]),
                    f"{np.mean([np.mean(r['weight']) for r in found]):.3f}",
                    "-" if defence == CLEAN else f"{len(rounds)} of {len(found)}",
                    f"{np.median(rounds):g}" if rounds else "-", f"{np.mean(honest):.1f} of 7", str(len(found)),
                ]
            )  # fmt: skip
    header = columns(
        "defence | masked accuracy | loss | the authors' accuracy | mean weight of client 0 | attacker excluded | "
        "in round | honest excluded | seeds"
    )
    return header, rows


def rounds_table(results: Results) -> Grid:
    """Masked accuracy and loss of each defence by round, means over seeds."""
    rows = []
    for defence, what in product(DEFENCES, ("accuracy", "loss")):
        if found := select(results, {"defence": defence}):
            rows.append([defence, what, *(f"{v:.4f}" for v in np.mean([r[what] for r in found], axis=0))])
    return ("defence", "metric", *(f"round {t}" for t in range(1, ROUNDS + 1))), rows


def scores_table(results: Results) -> Grid:
    """PID scores by client and round with the threshold, and the attacker's place among them; means over seeds."""
    found = select(results, {"defence": ATTACKED})
    scores = np.array([seen(r, "PID", "scores") for r in found])
    rows = [["client 0 (attacks)" if c == 0 else f"client {c}", *_short(scores[:, :, c])] for c in range(CLIENTS)]
    spread = scores.std(axis=2)
    rows.append(["mean + 2.33 sigma", *_short(scores.mean(axis=2) + 2.33 * spread)])
    z = (scores - scores.mean(axis=2, keepdims=True)) / spread[:, :, None]
    rows.append(["client 0, in deviations above the mean", *_short(z[:, :, 0])])
    rows.append(["the farthest other, in deviations", *_short(z[:, :, 1:].max(axis=2))])
    rows.append(["client 0, in deviations of the others", *_short(_apart(scores))])
    return ("scores of PID", *(f"round {t}" for t in range(1, ROUNDS + 1))), rows


def _apart(scores: Array) -> Array:
    others = scores[:, :, 1:]
    return np.asarray((scores[:, :, 0] - others.mean(axis=2)) / others.std(axis=2))


def _short(values: Array) -> list[str]:
    return [f"{v:.2f}" for v in values.mean(axis=0)]


def separation_table(results: Results) -> Grid:
    """Between which k a threshold mean + k sigma separates client 0 in every round from 2 on, by coefficients."""
    rows = []
    for defence, centre, k in product((ATTACKED, SLOW), ("PID", "PID, geometric median"), COEFFICIENTS):
        found = [pid_scores(seen(r, centre), *k)[START - 1 :] for r in select(results, {"defence": defence})]
        if not found:
            continue
        z = np.array([(s - s.mean(axis=1, keepdims=True)) / s.std(axis=1, keepdims=True) for s in found])
        low, high = z[:, :, 1:].max(), z[:, :, 0].min()
        rows.append(
            [
                f"{RATE if defence == ATTACKED else THEIRS:g}", "geometric median" if "median" in centre else "mean",
                *(f"{v:g}" for v in k), f"{high:.2f}", f"{low:.2f}",
                f"{low:.2f} to {high:.2f}" if low < high else "none",
            ]
        )  # fmt: skip
    header = columns(
        "learning rate | centre | K_P | K_I | K_D | client 0, at least | any other, at most | "
        "k that separates in every round"
    )
    return header, rows


def thresholds_table(results: Results, defence: str) -> Grid:
    """What each rule makes of the scores, in every round by itself and with exclusion for good."""
    rows = []
    found = [seen(r, "PID", "scores") for r in select(results, {"defence": defence})]
    calm = [seen(r, "PID", "scores") for r in select(results, {"defence": CLEAN})]
    for name, table in RULES.items():
        options = {key: value for key, value in table.items() if key != "name"}
        rule = make("rule", table["name"], **options)
        flags = [rule(v, t).flagged for s in found for t, v in enumerate(s[START - 1 :], 1)]
        gone, wronged = [excluded_by(rule, s) for s in found], [len(excluded_by(rule, s)) for s in calm]
        k = table.get("k")
        if table["name"] in ("cantelli", "gaussian"):  # what it says of two values with mean and deviation 1
            k = float(rule(np.array([0.0, 2.0]), 1).threshold) - 1.0
        rows.append(
            [
                name, "-" if k is None else f"{k:.2f}", "-" if k is None else f"{needed(k, CLIENTS):.2f}",
                f"{sum(f[0] for f in flags)} of {len(flags)}", f"{sum(int(f[1:].sum()) for f in flags)}",
                f"{sum(0 in g for g in gone)} of {len(gone)}",
                f"{np.mean([len(g.keys() - {0}) for g in gone]):.1f}", f"{np.mean(wronged):.1f}" if calm else "-",
            ]
        )  # fmt: skip
    header = columns(
        "threshold | k | deviations of the others needed | rounds with client 0 above it | honest client-rounds | "
        "client 0 excluded for good | honest excluded for good | excluded where nobody attacks"
    )
    return header, rows


def watches_table(results: Results) -> Grid:
    """How the attacker stands in every signal: its rank, and how far out, in the rounds and seeds."""
    rows = []
    for watch in (str(w["name"]) for w in SEEN):
        values = np.concatenate([seen(r, watch) for r in select(results, {"defence": ATTACKED})])
        others = values[:, 1:]
        middle = np.median(others, axis=1)
        mad = np.median(np.abs(others - middle[:, None]), axis=1)
        first = (values.argmax(axis=1) == 0).mean()
        rows.append([watch, f"{first:.2f}", f"{np.median((values[:, 0] - middle) / mad):.1f}"])
    return ("signal", "share of rounds in which client 0 is highest", "median/MAD z of client 0, median"), rows


def figure_5_sheets(results: Results) -> list[Sheet]:
    found = [
        Sheet("defences", f"Round {ROUNDS}: held-out texts of the seven honest clients", defences_table(results)),
        Sheet("rounds", "Masked accuracy and loss by round, means over seeds", rounds_table(results)),
    ]
    if select(results, {"defence": ATTACKED}):
        found += [
            Sheet("scores", "Scores with no client excluded, means over seeds", scores_table(results)),
            Sheet("separation", "In deviations above the mean of the eight, rounds 2 to 8", separation_table(results)),
            Sheet("thresholds", "What each threshold makes of these scores", thresholds_table(results, ATTACKED)),
            Sheet("signals", "Where client 0 stands in other signals", watches_table(results)),
        ]
    if select(results, {"defence": SLOW}):
        title = "What each threshold makes of the scores at the authors' learning rate"
        found.append(Sheet("thresholds-slow", title, thresholds_table(results, SLOW)))
    return found


def figure_5_holds(sheets: Sheets) -> str:
    """Whether the attacker is separated, by which thresholds, and what it costs."""
    rows = {r["defence"]: r for r in sheets["defences"].records()}
    parts = []
    if "separation" in sheets:
        for r in sheets["separation"].records():
            if (r["centre"], r["K_I"], r["K_D"]) == ("mean", "0.5", "0.05"):
                parts.append(
                    f"At a learning rate of {r['learning rate']} client 0 lies {r['client 0, at least']} deviations or "
                    f"more above the mean, the others {r['any other, at most']} or less"
                )
        parts.append(
            f"Among {CLIENTS} values one lies at most {math.sqrt(CLIENTS - 1):.2f} above; k = 2.33 needs "
            f"{needed(2.33, CLIENTS):.1f} deviations of the others"
        )
    for name, rate in (("thresholds", RATE), ("thresholds-slow", THEIRS)):
        if name in sheets:
            good = [
                r["threshold"]
                for r in sheets[name].records()
                if len(set(r["client 0 excluded for good"].split(" of "))) == 1
                and r["honest excluded for good"] == "0.0"
            ]
            told = ", ".join(good) or "none"
            parts.append(f"At {rate:g} client 0 alone is excluded in every run by: {told}")
    if CLEAN in rows and ATTACKED in rows:
        shown = [d for d in (CLEAN, ATTACKED, "PID-MADE + FedProx", "Krum") if d in rows]
        parts.append("Masked accuracy: " + "; ".join(f"{d} {rows[d]['masked accuracy']}" for d in shown))
    return ". ".join(parts) + "."


def draw_figure_5(results: Results, folder: Path, stem: str) -> list[Path]:
    """Loss, accuracy and scores over rounds."""
    lines: dict[str, dict[str, dict[int, list[float]]]] = {}
    for what, defence in product(("loss", "accuracy"), DEFENCES):
        if found := select(results, {"defence": defence}):
            curve = {t: [r[what][t - 1] for r in found] for t in range(1, ROUNDS + 1)}
            lines.setdefault("loss" if what == "loss" else "masked accuracy", {})[defence] = curve
    paths = [folder / f"{stem}-learning.svg"]
    curves(paths[0], lines, "Masked language modelling, one of eight clients malicious", "round", "", share=False)
    if found := select(results, {"defence": ATTACKED}):
        scores = {t: np.array([seen(r, "PID", "scores")[t - 1] for r in found]) for t in range(1, ROUNDS + 1)}
        panel = {f"client {c}": {t: s[:, c].tolist() for t, s in scores.items()} for c in range(CLIENTS)}
        for k in (2.33, 2.0):
            edge = {t: (s.mean(axis=1) + k * s.std(axis=1)).tolist() for t, s in scores.items()}
            panel[f"mean + {k:g} sigma"] = edge
        paths.append(folder / f"{stem}-scores.svg")
        curves(paths[1], {"scores of PID": panel}, "Client 0 is malicious", "round", "score", strong=["client 0"])
    return paths


FIGURE_5 = Item(
    "figure-5", "Masked language modelling with adapters, one malicious client of eight",
    "PID-MADE with FedProx lowers the loss most sharply, Krum being next, has the highest accuracy throughout (above "
    ".75 by round 3), and separates the malicious client, whose scores stay above the threshold.",
    cells, figure_5_sheets, figure_5_holds,
    "30 runs: one to two minutes each on a GPU",
    says={"accuracy of PID-MADE by round 3": "above .75"},
    chosen=(
        "the language model (MiniLM trained further on PubMed; the paper names none), so accuracies cannot be "
        "compared with the paper's", "8 rounds of 60 steps of 16 texts at a learning rate of 5e-4, and at the authors' "
        "5e-5, with Adam", "no dropout in the base",
        "thresholds are tried on the scores of runs in which no client was excluded",
    ),
    run=run, pictures=draw_figure_5, runs="pid-made-text", device="cuda",
)  # fmt: skip
