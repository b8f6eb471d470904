"""The figures of the paper on the divergence of representations, 100 clients, and what our own choices change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from fedwarden.studies.runner import Cell, Table

from ..studies.tables import Grid, Results, Sheet, confidence, interval, select
from .divergence import (
    CORRUPTIONS,
    SETTINGS,
    WATCHES,
    cells,
    detection_table,
    draw_calm,
    draw_corrupted,
    late,
    rank_one,
    run,
    scenario,
    thirds_table,
)
from .divergence_figures import (
    crowd,
    crowd_holds,
    crowd_table,
    heterogeneity_holds,
    heterogeneity_sheets,
    run_crowd,
    standing_out,
    standing_out_holds,
)
from .item import Item, Paper, Sheets, by_data

Option = Mapping[str, object]
AFFINITIES: Mapping[str, Option] = {f"affinity {a}": {"affinity": a} for a in ("absolute", "relative", "cosine")}
GAMMAS: Mapping[str, Option] = {f"gamma {g:g}": {"gamma": g} for g in (0.0, 0.5, 1.0, 2.0, 8.0)}
SIZES: Mapping[str, Option] = {f"probe {s}": {"probe": s} for s in (16, 32, 64, 128, 256, 512, 1024)}
CHOICES = {**AFFINITIES, **GAMMAS, **SIZES}
KINDS = {"reserve": "held by the server", "mnist": "public (MNIST)", "noise": "noise", "optimised": "optimised"}
POLICIES = ("observe", "down_weight", "exclude")
HARMS: Mapping[str, Option | None] = {
    "nobody": None,
    "rotation": CORRUPTIONS["rotation"],
    "label flip": {"name": "label_flip"},
    "sign flip": {"name": "sign_flip"},
}
ALPHAS = (1.0, 0.1)


def choices(seeds: Sequence[int], device: str = "cpu") -> list[tuple[Cell, Table]]:
    """Client 0 corrupted at Dirichlet 1, seen with every choice at once; the default choice on every kind of probe."""
    usual = [_watch("divergence", {})]
    every = [_watch(name, options) for name, options in CHOICES.items()]
    found: list[tuple[Cell, Table]] = []
    for corruption, kind, seed in product(("none", *CORRUPTIONS), KINDS, seeds):
        table = scenario(corruption, 1.0, seed, device, reserve=1024)
        data = {**table["data"], "probe_from": kind, "probe": 1024 if kind == "reserve" else 128}
        guard = {"policy": "observe", "watches": every if kind == "reserve" else usual}
        found.append(({"corruption": corruption, "kind": kind, "seed": seed}, {**table, "data": data, "guard": guard}))
    return found


def _watch(name: str, options: Option) -> dict[str, object]:
    signal, rule = {"name": "divergence", **options}, {"name": "offset", "limit": 6.0}
    return {"name": name, "signal": signal, "history": "standard", "rule": rule, "start_round": 1}


def choices_table(results: Results) -> Grid:
    """Per choice and corruption: how often the corrupted client ranks first, and its mean robust z; false flags."""
    rows = []
    for title, watch, kind in (
        *((name, name, "reserve") for name in CHOICES),
        *(
            (f"probe {words}", "probe 128" if kind == "reserve" else "divergence", kind)
            for kind, words in KINDS.items()
        ),
    ):
        seen = {c: select(results, {"corruption": c, "kind": kind}) for c in ("none", *CORRUPTIONS)}
        if not all(seen.values()):
            continue
        ranks = [interval([rank_one(r, watch) for r in seen[c]]) for c in CORRUPTIONS]
        heights = [np.mean([late(r, watch)[:, 0] for r in seen[c]]) for c in CORRUPTIONS]
        cells = [f"{rank}, z {z:.1f}" for rank, z in zip(ranks, heights, strict=True)]
        rows.append([title, *cells, f"{np.mean([late(r, watch, 'flagged').mean() for r in seen['none']]):.3f}"])
    return ("choice", *CORRUPTIONS, "flagged, nobody corrupted"), rows


def weights(seeds: Sequence[int], device: str = "cpu") -> list[tuple[Cell, Table]]:
    """Two harmful clients of ten, or none, under the signals of ``watch`` and each policy."""
    found: list[tuple[Cell, Table]] = []
    for harm, alpha, policy, seed in product(HARMS, ALPHAS, POLICIES, seeds):
        attack = HARMS[harm]
        table = {
            **scenario("none", alpha, seed, device),
            "attacks": [{**attack, "count": 2}] if attack else [],
            "guard": {"preset": "watch", "policy": policy},
        }
        found.append(({"harm": harm, "alpha": alpha, "policy": policy, "seed": seed}, table))
    return found


def weights_table(results: Results) -> Grid:
    """Clean accuracy at the end, and the weight that harmful and honest clients kept."""
    rows = []
    for alpha, harm in product(ALPHAS, HARMS):
        found = {p: select(results, {"harm": harm, "alpha": alpha, "policy": p}) for p in POLICIES}
        if all(found.values()):
            rows.append(
                [f"{alpha:g}", harm]
                + [confidence([float(np.mean(r["accuracy"][-5:])) for r in found[p]]) for p in POLICIES]
                + [f"{np.mean([np.mean(r['weights']) for r in found[p]]):.2f}" for p in POLICIES[1:]]
            )
    kept = [f"share of harmful or first two, {p}" for p in POLICIES[1:]]
    return ("Dirichlet", "harm by two of ten", *POLICIES, *kept), rows


OURS = (
    "10 clients", "20 rounds (CIFAR-10: 24)", "two hidden layers of 128 units (the paper gives the width only)",
    "learning rate 0.01, batches of 64",
    "the normaliser of a layer's affinity, 1 - ||A - B|| / N for N probe samples (`absolute`)",
)  # fmt: skip
STRENGTHS = (
    "noise at 0 dB, rotation by 90 degrees, blur of 3 pixels, and a third of the images with each ('mixture')",
    "CIFAR-10: its first 18,000 images where only they are at hand (`--data cifar10`); all of it by "
    "`--data cifar10-whole`",
)


def watched(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    """The federations of both figures on every data set."""
    return [({"data": d, **cell}, table) for d in SETTINGS for cell, table in cells(seeds, device, d)]


def calm(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    """No corrupted client, the MLP on Fashion-MNIST."""
    found = watched(seeds, device)
    return [(cell, t) for cell, t in found if (cell["data"], cell["corruption"]) == ("fashion_mnist", "none")]


def corrupted(results: Results) -> list[Sheet]:
    found = [Sheet("divergence", "The corrupted client by its divergence, late rounds", standing_out(results))]
    for name, part in by_data(results).items():
        found.append(Sheet(f"{name}-signals", f"Other signals beside it, {name}", detection_table(part)))
        found.append(Sheet(f"{name}-thirds", f"Share of rounds in which it ranks first, {name}", thirds_table(part)))
    return found


def draw_by_data(found: Results, folder: Path, stem: str) -> list[Path]:
    return [p for name, part in by_data(found).items() for p in draw_corrupted(part, folder, f"{stem}-{name}")]


def told(sheets: Sheets) -> str:
    return "See the page on [signals and corrupted data](watch.md)."


PAPER = Paper(
    "divergence",
    "Atypical clients by the divergence of representations",
    "https://arxiv.org/abs/2605.22266",
    (
        Item(
            "figure-1", "Divergence by heterogeneity",
            "divergence is high in the first rounds and then settles; it rises with heterogeneity, and at the "
            "strongest some clients stay apart.",
            calm, heterogeneity_sheets, heterogeneity_holds, "15 minutes on 2 cores",
            chosen=(*OURS, "Dirichlet 100, 1 and 0.1 for near IID, moderate and strong"),
            run=run, pictures=draw_calm, runs="watch",
        ),
        Item(
            "figure-2", "One corrupted client",
            "with both models the corrupted client has a much higher z than the rest in round after round, and the "
            "others stay low (Dirichlet 1).",
            watched, corrupted, standing_out_holds,
            "half an hour on 2 cores (fashion_mnist); CIFAR-10: 5 minutes a seed on a GPU, all of it 15",
            {"Dirichlet": 1},
            chosen=("as for figure 1", *STRENGTHS), run=run, pictures=draw_by_data, runs="watch",
            rarely=("cifar10-whole",),
        ),
        Item(
            "crowd", "100 clients, ten of them in each round",
            "large federations are left to future work.", crowd,
            lambda found: [Sheet("crowd", "Ten of 100 clients corrupted", crowd_table(found, WATCHES))], crowd_holds,
            "5 minutes on 2 cores", chosen=("60 rounds", "Fashion-MNIST, Dirichlet 1", "ten corrupted clients"),
            run=run_crowd, runs="watch-crowd",
        ),
        Item(
            "choices", "What the choices inside the watch change", "gamma, normaliser and probe are not varied there.",
            choices, lambda found: [Sheet("choices", "Each choice", choices_table(found))], told, "hours on 2 cores",
            run=run, runs="watch-choices",
        ),
        Item(
            "weights", "Less weight or none for a client that stands out", "no client is left out of the model there.",
            weights, lambda found: [Sheet("weights", "Each policy", weights_table(found))], told, "hours on 2 cores",
            run=run, runs="watch-weights",
        ),
    ),
    "Both figures by their numbers. The text gives no values of them, so the claims are compared. *Late* rounds are "
    "those after the first third; z is the robust z-score of a round (median and MAD).",
)  # fmt: skip
