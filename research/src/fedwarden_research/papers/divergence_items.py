"""The figures of the paper on the divergence of representations, 100 clients, and what our own choices change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedwarden.studies.runner import Cell, Table
from fedwarden.studies.tables import Results, Sheet

from .divergence import SETTINGS, WATCHES, cells, detection_table, draw_calm, draw_corrupted, run, thirds_table
from .divergence_choices import choices, choices_table, weights, weights_table
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
    """Nobody corrupted, the MLP on Fashion-MNIST."""
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
