"""``fedwarden reproduce``: the tables and figures of the papers, beside the papers' own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedwarden import studies
from fedwarden.cli.bench import run_jobs
from fedwarden.cli.common import AsJson, Home, emit, out, table
from fedwarden.core.errors import ConfigError, nearest
from fedwarden.sim.training import limits
from fedwarden.store.ledger import home

from . import papers
from .studies import tables

PAPERS = {"pid-made": "pid_made_items", "divergence": "divergence_items", "shifts": "shift_items"}

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(name="reproduce")
def command(
    paper: Annotated[
        str | None, typer.Argument(help=f"One of: {', '.join(PAPERS)}.", metavar="PAPER", show_default=False)
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Tables and figures, as in figure-2; by default all.", metavar="ITEM", show_default=False),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List every item, and what it takes.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Repetitions, from seed 0 on; by default as many as the page has.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; by default, and at most, one per core.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda.")] = "cpu",
    data: Annotated[
        list[str] | None,
        typer.Option(help="Run only these data sets of an item that has several; may be repeated."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write tables as CSV, pictures and the paper's page below this folder.", show_default=False
        ),
    ] = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Without: tables and the page of what is kept.")] = True,
    as_json: AsJson = False,
    workspace: Home = None,
) -> None:
    """Make a table or figure of a paper again, with the paper's own values beside ours.

    Every result is kept as it comes: what was cut off goes on where it was, and more seeds only add to it. Tables and
    pictures are made of everything kept.
    """
    if listing:
        return _list([paper_of(name) for name in ([paper] if paper else PAPERS)], as_json)
    if paper is None:
        raise ConfigError(f"name a paper, one of {', '.join(PAPERS)}; fedwarden reproduce --list shows their items")
    chosen = paper_of(paper)
    items = [chosen.item(name) for name in dict.fromkeys(names or ())] or list(chosen.items)
    place = workspace or home()
    jobs = {i.name: chosen.jobs(i, seeds or i.seeds, device) for i in items}
    chosen_data = {i.name: _of(i, data or (), len(items) == 1) for i in items}
    wanted = [job for i in items for job in papers.item.wanted(i, jobs[i.name], chosen_data[i.name])] if run else []
    run_jobs(" ".join([paper, *(names or ())]), studies.runner.unique(wanted), place, limits.processes(processes))
    found = {i.name: studies.runner.kept(place, jobs[i.name]) for i in items}
    files = [
        path for i in items if folder and found[i.name] for path in papers.page.write(chosen, i, found[i.name], folder)
    ]
    if folder is not None:
        files.append(papers.page.write_page(chosen, folder))
    if as_json:
        told = [_as_json(i, found[i.name]) for i in items]
        return emit({"paper": chosen.name, "items": told, "files": [str(f) for f in files]})
    for i in items:
        _print(i, found[i.name], [studies.runner.results_file(place, job.study) for job in jobs[i.name]])
    if files:
        out.print(f"{len(files)} files below {folder}, the page in {files[-1]}", soft_wrap=True)
    return None


def paper_of(name: str) -> papers.item.Paper:
    if name not in PAPERS:
        raise ConfigError(f"there is no paper {name!r} here; {nearest(name, PAPERS)}")
    found: papers.item.Paper = getattr(papers, PAPERS[name]).PAPER
    return found


def _of(item: papers.item.Item, data: Sequence[str], alone: bool) -> list[str]:
    """The data asked for; of several items, each takes what it has."""
    return list(data) if alone else [d for d in data if d in item.data()]


def _print(item: papers.item.Item, found: tables.Results, files: Sequence[Path]) -> None:
    print(f"## {papers.page.heading(item)}\n")
    sheets = item.sheets(found) if found else []
    for sheet in sheets:
        print(f"{sheet}\n")
    if sheets:
        print(item.holds({sheet.name: sheet for sheet in sheets}) + "\n")
    out.print(f"{len(found)} runs; every one in {', '.join(dict.fromkeys(map(str, files)))}\n", soft_wrap=True)


def _as_json(item: papers.item.Item, found: tables.Results) -> dict[str, object]:
    sheets = {sheet.name: sheet for sheet in item.sheets(found)} if found else {}
    return {
        "item": item.name,
        "title": item.title,
        "paper_says": dict(item.says),
        "runs": len(found),
        "holds": item.holds(sheets) if sheets else None,
        "tables": {name: s.records() for name, s in sheets.items()},
    }


def _list(chosen: Sequence[papers.item.Paper], as_json: bool) -> None:
    if as_json:
        return emit(
            {p.name: {i.name: {"title": i.title, "data": i.data(), "cost": i.cost} for i in p.items} for p in chosen}
        )
    for paper in chosen:
        shown = table("item", "what", "takes", title=f"\n{paper.name}: {paper.title}", left=(0, 1, 2))
        for i in paper.items:
            shown.add_row(i.name, i.title, i.cost)
        out.print(shown)
    out.print("\nfedwarden reproduce PAPER ITEM makes one of them, fedwarden reproduce PAPER all.")
    return None
