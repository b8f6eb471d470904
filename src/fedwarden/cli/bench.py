"""``fedwarden bench``: every defence against every attack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..core.errors import ConfigError, nearest
from ..experiments import defences
from ..experiments.pictures import drawing
from ..experiments.study import collect, results, results_file
from ..sim import limits
from ..store.ledger import home
from .common import AsJson, Home, emit, out, progress

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(name="bench")
def command(
    what: Annotated[Literal["defences"], typer.Argument(help="The grid to run.")] = "defences",
    data: Annotated[str, typer.Option(help=f"One of: {', '.join(defences.SETTINGS)}.")] = "digits",
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of every cell, from seed 0 on.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of every run.")] = 30,
    defence: Annotated[list[str] | None, typer.Option(help="Only this defence; may be repeated.")] = None,
    attack: Annotated[list[str] | None, typer.Option(help="Only this attack; may be repeated.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default and most: one per core.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Where the page and the pictures go.")] = None,
    as_json: AsJson = False,
    workspace: Home = None,
) -> None:
    """Run a grid of defences, attacks, shares of attackers and heterogeneity, and write its tables and pictures.

    Every result is kept as it comes: a grid that was cut off goes on where it was, and more seeds only add to it.
    """
    if data not in defences.SETTINGS:
        raise ConfigError(f"there are settings for {', '.join(defences.SETTINGS)}; got {data!r}")
    for kind, given, known in (
        ("defence", defence, defences.DEFENCES),
        ("attack", attack, ("none", *defences.ATTACKS)),
    ):
        for name in given or ():
            if name not in known:
                raise ConfigError(f"there is no {kind} {name!r}; {nearest(name, known)}")
    drawing()  # say now, not after hours, that pictures cannot be drawn
    wanted = [
        (cell, table)
        for cell, table in defences.cells(range(seeds), data, rounds)
        if (not defence or cell["defence"] in defence) and (not attack or cell["attack"] in attack)
    ]
    name = f"{what}-{data}-{rounds}"
    place = workspace or home()
    with progress() as bar:
        task = bar.add_task(name, total=len(wanted), status="")
        for done in collect(name, wanted, place, limits.processes(processes)):
            bar.update(task, completed=done, status=f"{done} of {len(wanted)}")
    found = results(place, name, wanted)
    target = folder or place / "bench" / name
    target.mkdir(parents=True, exist_ok=True)
    (target / "defences.md").write_text(defences.page(found) + "\n")
    pictures = defences.draw(found, target)
    if as_json:
        emit({"runs": len(found), "page": str(target / "defences.md"), "pictures": [str(p) for p in pictures]})
        return
    print(defences.verdict(found) + "\n\n" + defences.ranking(found))
    out.print(
        f"\n{len(found)} runs; page and {len(pictures)} pictures in {target}, runs in {results_file(place, name)}"
    )
