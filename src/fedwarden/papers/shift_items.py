"""The studies of shifts as items of their paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..studies.runner import Cell, Table
from ..studies.tables import Results, Sheet
from .item import Item, Paper, Sheets
from .shift_audits import AUDITS, Audit
from .shifts import SETTINGS

PUBLISHED = ("mnist", "fashion_mnist", "census")
TITLES = {
    "centralised": "One model, watched from outside",
    "layers": "Layer by layer",
    "sensitivity": "Sensitivity: two clients, every ratio",
    "many": "Sensitivity among more clients",
    "outputs": "Sources that look at the answers",
    "scalability": "Scalability: two to ten clients",
    "mitigations": "What hides a shift, and what that costs",
}


def item(name: str, audit: Audit) -> Item:
    """A study of leakage on each data set."""

    def cells(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
        return [
            ({"data": d, **cell}, table) for d, s in SETTINGS.items() for cell, table in audit.cells(seeds, device, s)
        ]

    def sheets(found: Results) -> list[Sheet]:
        return [
            Sheet(f"{data}-{sheet.name}", f"{sheet.title}, {data}", sheet.grid)
            for data, part in by_data(found).items()
            for of in audit.tables
            for sheet in of(part)
        ]

    def pictures(found: Results, folder: Path, stem: str) -> list[Path]:
        draw = audit.picture
        if draw is None:
            return []
        parts = by_data(found).items()
        return [draw(part, folder / f"{stem}-{data}.svg", f"{stem}, {data}") for data, part in parts]

    usual = (audit.data,) if audit.data not in PUBLISHED else PUBLISHED
    return Item(
        name, TITLES[name], "shifts of the label ratio show in what a participant sees.", cells, sheets, told,
        "hours; a GPU for the CNN", run=audit.run, pictures=pictures, runs=audit.runs, seeds=10,
        rarely=tuple(d for d in SETTINGS if d not in usual),
    )  # fmt: skip


def by_data(results: Results) -> dict[str, Results]:
    """The results on each data set that has any."""
    return {d: part for d in SETTINGS if (part := [r for r in results if r["cell"]["data"] == d])}


def told(sheets: Sheets) -> str:
    return "the page on [what a curious participant can tell](audit.md) says what was found."


PAPER = Paper(
    "shifts",
    "Shifts of the data as a privacy issue",
    "https://arxiv.org/abs/2409.13875",
    tuple(item(name.removeprefix("audit-"), audit) for name, audit in AUDITS.items()),
)
