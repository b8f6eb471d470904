"""``fedwarden reproduce``: the studies behind the documentation's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import ConfigError, nearest
from ..experiments.audit import SETTINGS
from ..experiments.audits import AUDITS
from ..experiments.guard import STUDIES
from ..experiments.pictures import drawing
from ..experiments.study import collect, results, results_file
from ..sim.pool import default_workers
from ..store.ledger import home
from .common import out, progress

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(name="reproduce")
def command(
    study: Annotated[str, typer.Argument(help=f"One of: {', '.join([*STUDIES, *AUDITS])}.", show_default=False)],
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of every cell, from seed 0 on.")] = 3,
    processes: Annotated[int | None, typer.Option(min=1, help="Scenarios at a time; default: one per core.")] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda.")] = "cpu",
    data: Annotated[
        str | None,
        typer.Option(
            help=f"Of an audit: {', '.join(SETTINGS)}; default: mnist, and digits for the mitigations.",
            show_default=False,
        ),
    ] = None,
    pictures: Annotated[
        Path | None, typer.Option("--out", help="Where an audit's picture goes.", show_default=False)
    ] = None,
    workspace: Annotated[Path | None, typer.Option("--home", help="The workspace.")] = None,
) -> None:
    """Run a study and print its tables in Markdown.

    Every result is kept as it comes: a study that was cut off goes on where it was, and more seeds only add to it.
    """
    if study in AUDITS:
        audit = AUDITS[study]
        name = data or audit.data
        if name not in SETTINGS:
            raise ConfigError(f"there is no setting {name!r} of an audit; {nearest(name, SETTINGS)}")
        cells, tables, kept = audit.cells(range(seeds), device, SETTINGS[name]), audit.tables, f"{audit.runs}-{name}"
        run, picture = audit.run, audit.picture
    elif study in STUDIES:
        if data is not None or pictures is not None:
            raise ConfigError(f"--data and --out are for audits; the study {study!r} has its own data and no picture")
        cells_of, tables = STUDIES[study]
        cells, kept, run, picture = cells_of(range(seeds), device), study, None, None
    else:
        raise ConfigError(f"there is no study {study!r}; {nearest(study, [*STUDIES, *AUDITS])}")
    if pictures is not None:
        drawing()  # say now, not after hours, that pictures cannot be drawn
    folder = workspace or home()
    with progress() as bar:
        task = bar.add_task(study, total=len(cells), status="")
        for done in collect(kept, cells, folder, processes or default_workers(), run):
            bar.update(task, completed=done, status=f"{done} of {len(cells)}")
    wanted = [dict(cell) for cell, _ in cells]
    found = [r for r in results(folder, kept) if r["cell"] in wanted]
    for table in tables:
        print(table(found) + "\n")
    if pictures is not None and picture is not None:
        out.print(f"picture: {picture(found, pictures / f'audit-{kept}.svg', f'{study}, {len(found)} runs')}")
    out.print(f"{len(found)} runs; every one in {results_file(folder, kept)}")
