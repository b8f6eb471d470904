"""``fedwarden reproduce``: the studies behind the documentation's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import ConfigError, nearest
from ..experiments.audit import SETTINGS
from ..experiments.guard import STUDIES
from ..experiments.leakage import AUDITS
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
        str | None, typer.Option(help=f"Of an audit: {', '.join(SETTINGS)}; default: mnist.", show_default=False)
    ] = None,
    workspace: Annotated[Path | None, typer.Option("--home", help="The workspace.")] = None,
) -> None:
    """Run a study and print its tables in Markdown.

    Every result is kept as it comes: a study that was cut off goes on where it was, and more seeds only add to it.
    """
    if study in AUDITS:
        name = data or "mnist"
        if name not in SETTINGS:
            raise ConfigError(f"there is no setting {name!r} of an audit; {nearest(name, SETTINGS)}")
        audit = AUDITS[study]
        cells, tables, kept = audit.cells(range(seeds), device, SETTINGS[name]), audit.tables, f"{audit.runs}-{name}"
        run = audit.run
    elif study in STUDIES:
        if data is not None:
            raise ConfigError(f"--data is for audits; the study {study!r} has its own data")
        cells_of, tables = STUDIES[study]
        cells, kept, run = cells_of(range(seeds), device), study, None
    else:
        raise ConfigError(f"there is no study {study!r}; {nearest(study, [*STUDIES, *AUDITS])}")
    folder = workspace or home()
    with progress() as bar:
        task = bar.add_task(study, total=len(cells), status="")
        for done in collect(kept, cells, folder, processes or default_workers(), run):
            bar.update(task, completed=done, status=f"{done} of {len(cells)}")
    wanted = [dict(cell) for cell, _ in cells]
    found = [r for r in results(folder, kept) if r["cell"] in wanted]
    for table in tables:
        print(table(found) + "\n")
    out.print(f"{len(found)} runs; every one in {results_file(folder, kept)}")
