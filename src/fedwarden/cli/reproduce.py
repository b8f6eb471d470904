"""``fedwarden reproduce``: the studies behind the documentation's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import ConfigError, nearest
from ..papers import divergence, divergence_choices, pid_made
from ..papers.shift_audits import AUDITS, Draw
from ..papers.shifts import SETTINGS
from ..sim.training import limits
from ..store.ledger import home
from ..studies import detection
from ..studies.pictures import drawing
from ..studies.runner import Cell, Table, collect, results, results_file
from ..studies.tables import Result, Results, Sheet, write_csv
from .common import out, progress

Study = tuple[Callable[..., list[tuple[Cell, Table]]], tuple[Callable[[Results], str], ...]]
"""What makes the cells, and the tables of their results."""

STUDIES: Mapping[str, Study] = {
    "published": (pid_made.published, (pid_made.published_table,)),
    "detection": (detection.detection, (detection.detection_summary, detection.detection_table)),
}
WATCHES: Mapping[str, Study] = {
    "watch": (divergence.cells, (divergence.detection_table, divergence.thirds_table, divergence.calm_table)),
    "watch-choices": (divergence_choices.choices, (divergence_choices.choices_table,)),
    "watch-weights": (divergence_choices.weights, (divergence_choices.weights_table,)),
}
NAMES = (*STUDIES, *WATCHES, *AUDITS)

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(name="reproduce")
def command(
    study: Annotated[str, typer.Argument(help=f"One of: {', '.join(NAMES)}.", show_default=False)],
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of every cell, from seed 0 on.")] = 3,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Scenarios at a time; default and most: one per core.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda.")] = "cpu",
    data: Annotated[
        str | None,
        typer.Option(
            help=f"Of an audit: {', '.join(SETTINGS)}; default: mnist, and digits for the mitigations. "
            f"Of the watch: {', '.join(divergence.SETTINGS)}.",
            show_default=False,
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Where the pictures of an audit or of the watch go, and an audit's tables as CSV.",
            show_default=False,
        ),
    ] = None,
    workspace: Annotated[Path | None, typer.Option("--home", help="The workspace.")] = None,
) -> None:
    """Run a study and print its tables in Markdown.

    Every result is kept as it comes: a study that was cut off goes on where it was, and more seeds only add to it.
    """
    run: Callable[[Table], Result] | None
    draw: Callable[..., list[Path]] | None
    tables: Sequence[Callable[[Results], str]]
    sheets: Sequence[Callable[[Results], list[Sheet]]] = ()
    if study in AUDITS:
        audit = AUDITS[study]
        name = data or audit.data
        if name not in SETTINGS:
            raise ConfigError(f"there is no setting {name!r} of an audit; {nearest(name, SETTINGS)}")
        cells, tables, kept = audit.cells(range(seeds), device, SETTINGS[name]), (), f"{audit.runs}-{name}"
        sheets, picture = audit.tables, audit.picture
        run, draw = audit.run, picture and partial(_audit_picture, picture, study, name)
    elif study in WATCHES:
        cells_of, tables = WATCHES[study]
        cells, kept, run, draw = cells_of(range(seeds), device), study, divergence.run, None
        if study == "watch":
            name = data or "fashion_mnist"
            if name not in divergence.SETTINGS:
                raise ConfigError(f"there is no setting {name!r} of the watch; {nearest(name, divergence.SETTINGS)}")
            kept = study if data is None else f"{study}-{name}"
            cells, draw = cells_of(range(seeds), device, name), partial(divergence.draw, name=kept)
        elif data is not None:
            raise ConfigError(f"--data is for audits and the watch; the study {study!r} is on Fashion-MNIST")
    elif study in STUDIES:
        if data is not None or pictures is not None:
            raise ConfigError(f"--data and --out are for audits; the study {study!r} has its own data and no picture")
        cells_of, tables = STUDIES[study]
        cells, kept, run, draw = cells_of(range(seeds), device), study, None, None
    else:
        raise ConfigError(f"there is no study {study!r}; {nearest(study, NAMES)}")
    if pictures is not None:
        drawing()  # say now, not after hours, that pictures cannot be drawn
    folder = workspace or home()
    with progress() as bar:
        task = bar.add_task(study, total=len(cells), status="")
        for done in collect(kept, cells, folder, limits.processes(processes), run):
            bar.update(task, completed=done, status=f"{done} of {len(cells)}")
    found = results(folder, kept, cells)
    for table in tables:
        print(table(found) + "\n")
    for sheet in (made := [sheet for of in sheets for sheet in of(found)]):
        print(f"{sheet}\n")
    if pictures is not None and made:
        written = [write_csv(pictures / f"{study}-{name}-{sheet.name}.csv", sheet.grid) for sheet in made]
        out.print(f"tables: {', '.join(map(str, written))}")
    if pictures is not None and draw is not None:
        out.print(f"pictures: {', '.join(map(str, draw(found, pictures)))}")
    out.print(f"{len(found)} runs; every one in {results_file(folder, kept)}")


def _audit_picture(picture: Draw, study: str, data: str, found: Results, folder: Path) -> list[Path]:
    return [picture(found, folder / f"{study}-{data}.svg", f"{study}, {data}")]
