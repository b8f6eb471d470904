"""The figures of the paper on the divergence of representations, and what our own choices change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..studies.runner import Cell, Table
from ..studies.tables import Results, Sheet
from .divergence import SETTINGS, calm_table, cells, detection_table, draw_calm, draw_corrupted, run, thirds_table
from .divergence_choices import choices, choices_table, weights, weights_table
from .item import Item, Paper, Sheets


def watched(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    """Both figures' federations on every data set."""
    return [({"data": d, **cell}, table) for d in SETTINGS for cell, table in cells(seeds, device, d)]


def by_data(results: Results) -> dict[str, Results]:
    """The results on each data set that has any."""
    names = dict.fromkeys(r["cell"]["data"] for r in results)
    return {name: [r for r in results if r["cell"]["data"] == name] for name in names}


def calm(results: Results) -> list[Sheet]:
    return [
        Sheet(name, f"Nobody corrupted, {name}: mean divergence by heterogeneity", calm_table(part))
        for name, part in by_data(results).items()
    ]


def corrupted(results: Results) -> list[Sheet]:
    found = []
    for name, part in by_data(results).items():
        found.append(Sheet(f"{name}-signals", f"One corrupted client of ten, {name}", detection_table(part)))
        found.append(Sheet(f"{name}-thirds", f"Share of rounds in which it ranks first, {name}", thirds_table(part)))
    return found


def pictures(draw: Callable[[Results, Path, str], list[Path]]) -> Callable[[Results, Path, str], list[Path]]:
    """A drawing for each data set."""
    return lambda found, folder, stem: [
        path for name, part in by_data(found).items() for path in draw(part, folder, f"{stem}-{name}")
    ]


def told(sheets: Sheets) -> str:
    return "the page on [signals and corrupted data](watch.md) says what was found."


PAPER = Paper(
    "divergence",
    "Atypical clients by the divergence of representations",
    "https://arxiv.org/abs/2605.22266",
    (
        Item(
            "figure-1", "Divergence by heterogeneity", "clients diverge more where their data differ more.", watched,
            calm, told, "an hour and more on 2 cores; CIFAR-10 needs a GPU", run=run, pictures=pictures(draw_calm),
            runs="watch", seeds=10,
        ),
        Item(
            "figure-2", "One corrupted client", "a client with corrupted data stands out by its divergence.", watched,
            corrupted, told, "the runs of figure 1", run=run, pictures=pictures(draw_corrupted), runs="watch", seeds=10,
        ),
        Item(
            "choices", "What the choices inside the watch change", "gamma, normaliser and probe are not varied there.",
            choices, lambda found: [Sheet("choices", "Each choice", choices_table(found))], told, "hours on 2 cores",
            run=run, runs="watch-choices",
        ),
        Item(
            "weights", "Less weight or none for a client that stands out", "nobody is left out of the model there.",
            weights, lambda found: [Sheet("weights", "Each policy", weights_table(found))], told, "hours on 2 cores",
            run=run, runs="watch-weights",
        ),
    ),
)  # fmt: skip
