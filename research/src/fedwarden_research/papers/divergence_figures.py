"""Figures 1 and 2 of the paper on divergence as plain numbers, what they say of its claims, and 100 clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from fedwarden.audit.power import rank_p
from fedwarden.core.separation import auroc
from fedwarden.studies.runner import Cell, Table, played

from ..studies.tables import Grid, Result, Results, Sheet, select
from .divergence import ALPHAS, CORRUPTIONS, Array, late, rank_one, scenario, scores_and_flags, seen_by_watch
from .item import LEVEL, found_from, number, summary, too_few

FIRST = 3  # rounds that count as the first ones
ALWAYS = 0.95  # share of late rounds in which "consistently" is taken at its word
MANY, SHIFTED, ROUNDS = 100, 10, 60


def apart(signal: Array) -> float:
    """How far the farthest client lies from the median one, over the median, in the mean over rounds.

    >>> apart(np.array([[1.0, 2.0, 6.0], [2.0, 2.0, 2.0]]))
    1.0
    """
    middle = np.median(signal, axis=1)
    return float(np.mean((signal.max(axis=1) - middle) / middle))


def same_client(signal: Array) -> float:
    """The largest share of rounds in which one and the same client is the farthest.

    >>> same_client(np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0], [0.0, 1.0]]))
    0.75
    """
    return float(np.bincount(signal.argmax(axis=1)).max() / len(signal))


def levels(results: Results) -> Grid:
    """By heterogeneity: the divergence of the first and of late rounds, how far the farthest client lies, accuracy."""
    rows = []
    for alpha in ALPHAS:
        found = select(results, {"corruption": "none", "alpha": alpha})
        if not found:
            continue
        first = [float(np.mean(r["divergence"]["signal"][:FIRST])) for r in found]
        signals = [late(r, "divergence", "signal") for r in found]
        columns = (
            first, [float(s.mean()) for s in signals], [apart(s) for s in signals],
            [same_client(s) for s in signals], [r["accuracy"][-1] for r in found],
        )  # fmt: skip
        rows.append([f"{alpha:g}", *(x for c in columns for x in summary(c)), str(len(found))])
    names = ("first rounds", "late rounds", "farthest over median", "one client farthest", "accuracy")
    return ["Dirichlet", *(x for name in names for x in (name, f"{name} sd")), "seeds"], rows


def order(results: Results) -> Grid:
    """Whether late divergence is larger under more heterogeneity: a rank test of each step over seeds."""
    rows = []
    for calm, apart_ in ((ALPHAS[0], ALPHAS[1]), (ALPHAS[1], ALPHAS[2]), (ALPHAS[0], ALPHAS[2])):
        low, high = (
            [float(late(r, "divergence", "signal").mean()) for r in select(results, {"corruption": "none", "alpha": a})]
            for a in (calm, apart_)
        )
        if low and high:
            more, less = np.array(high), np.array(low)
            rows.append([f"{calm:g}", f"{apart_:g}", number(auroc(more, less)), number(rank_p(more, less))])
    return ["from Dirichlet", "to", "AUROC", "p"], rows


def heterogeneity_sheets(results: Results) -> list[Sheet]:
    return [
        Sheet("levels", "No client corrupted: divergence of the clients", levels(results)),
        Sheet("order", "Does it rise with heterogeneity", order(results)),
    ]


def heterogeneity_holds(sheets: Mapping[str, Sheet]) -> str:
    rows, steps = sheets["levels"].records(), sheets["order"].records()
    if unsure := too_few(rows):
        return unsure
    falls = sum(float(row["first rounds"]) > float(row["late rounds"]) for row in rows)
    rises = [step for step in steps if float(step["p"]) <= LEVEL]
    most, least = rows[-1], rows[0]
    word = "holds" if falls == len(rows) and len(rises) == len(steps) else "holds in part"
    return (
        f"The claim {word}: the first rounds lie above the late ones at {falls} of {len(rows)} degrees, divergence "
        f"rises in {len(rises)} of {len(steps)} steps to more heterogeneity ({least['late rounds']} at Dirichlet "
        f"{least['Dirichlet']}, {most['late rounds']} at {most['Dirichlet']}), and one and the same client is the "
        f"farthest in {float(most['one client farthest']):.0%} of the late rounds at {most['Dirichlet']}, in "
        f"{float(least['one client farthest']):.0%} at {least['Dirichlet']}. {found_from(rows)}"
    )


def standing_out(results: Results) -> Grid:
    """The corrupted client by its divergence: z, how often it ranks first, AUROC over seeds and rounds, flags."""
    rows = []
    for data, corruption in product(dict.fromkeys(r["cell"]["data"] for r in results), CORRUPTIONS):
        found = select(results, {"data": data, "corruption": corruption})
        if not found:
            continue
        z = [late(r, "divergence") for r in found]
        flagged = [late(r, "divergence", "flagged") for r in found]
        scores = np.concatenate(z)
        columns = (
            [float(x[:, 0].mean()) for x in z], [float(x[:, 1:].mean()) for x in z],
            [rank_one(r, "divergence") for r in found],
        )  # fmt: skip
        rows.append(
            [
                str(data), corruption, *(x for c in columns for x in summary(c)),
                number(auroc(scores[:, 0], scores[:, 1:].ravel())), number(float(np.mean([f[:, 0] for f in flagged]))),
                number(float(np.mean([f[:, 1:] for f in flagged]))), str(len(found)),
            ]
        )  # fmt: skip
    names = ("z", "z of the others", "ranks first")
    head = ["data", "corruption", *(x for name in names for x in (name, f"{name} sd"))]
    return [*head, "AUROC", "flagged", "others flagged", "seeds"], rows


def standing_out_holds(sheets: Mapping[str, Sheet]) -> str:
    parts = []
    rows = sheets["divergence"].records()
    for data in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == data]
        always = [row["corruption"] for row in mine if float(row["ranks first"]) >= ALWAYS]
        rest = [f"{r['corruption']} ({float(r['ranks first']):.2f})" for r in mine if r["corruption"] not in always]
        word = "holds" if not rest else "holds in part" if always else "does not hold"
        seeds = min(int(row["seeds"]) for row in mine)
        parts.append(
            f"on {data} the claim {word} ({seeds} seed{'s' * (seeds != 1)}): the corrupted client has the highest z in "
            f"{ALWAYS:.0%} of the late rounds or more with {', '.join(always) or 'no corruption'}"
            + (f", in fewer with {', '.join(rest)}" if rest else "")
        )
    return "; ".join(parts) + "."


def crowd(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    """A hundred clients of whom ten take part in a round; ten of the hundred are corrupted, or nobody."""
    found: list[tuple[Cell, Table]] = []
    for corruption, seed in product(("none", *CORRUPTIONS), seeds):
        table = scenario(corruption, 1.0, seed, device)
        attacks = [{**attack, "count": SHIFTED} for attack in table["attacks"]]
        found.append((
            {"corruption": corruption, "seed": seed},
            {
                **table, "rounds": ROUNDS, "checkpoint_every": ROUNDS, "attacks": attacks,
                "data": {**table["data"], "clients": MANY}, "train": {**table["train"], "participation": 0.1},
            },
        ))  # fmt: skip
    return found


def run_crowd(table: Table) -> Result:
    """The clients of each round, and the scores and flags of every watch."""
    records = played(table).records
    found: dict[str, object] = {
        "accuracy": [r.metrics["accuracy"] for r in records],
        "clients": [[int(c) for c in r.client_ids] for r in records],
    }
    return found | {name: scores_and_flags(seen) for name, seen in seen_by_watch(records).items()}


def crowd_table(results: Results, watches: Sequence[str]) -> Grid:
    """By corruption and watch: AUROC of a corrupted client against the others that take part, and flags."""
    rows = []
    for corruption, watch in product(("none", *CORRUPTIONS), watches):
        found = select(results, {"corruption": corruption})
        if not found:
            continue
        scores, flags, clients = (np.concatenate([_late(r, watch, k) for r in found]) for k in ("score", "flagged", ""))
        known = np.isfinite(scores)
        scores, flags = scores[known], flags[known]
        bad = (clients[known] < SHIFTED) & (corruption != "none")
        told = [number(auroc(scores[bad], scores[~bad])), number(float(flags[bad].mean()))] if bad.any() else ["", ""]
        accuracy = summary([r["accuracy"][-1] for r in found])
        rows.append([corruption, watch, *told, number(float(flags[~bad].mean())), *accuracy, str(len(found))])
    head = ["corruption", "watch", "AUROC", "flagged", "others flagged", "accuracy", "accuracy sd", "seeds"]
    return head, rows


def _late(result: Result, watch: str, what: str) -> Array:
    """Scores, flags or (without a name) clients of all that took part after the first third of the rounds."""
    rounds = result[watch][what] if what else result["clients"]
    return np.array([v for r in rounds[len(rounds) // 3 :] for v in r], dtype=np.float64)


def crowd_holds(sheets: Mapping[str, Sheet]) -> str:
    rows = [row for row in sheets["crowd"].records() if row["corruption"] != "none"]
    told = {w: [float(r["AUROC"]) for r in rows if r["watch"] == w] for w in dict.fromkeys(r["watch"] for r in rows)}
    words = ", ".join(f"{w} {min(a):.2f} to {max(a):.2f}" for w, a in told.items())
    return f"AUROC of corrupted clients among those who take part, over the corruptions: {words}."
