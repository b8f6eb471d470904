"""The workspace as a whole: ``fedwarden runs``, ``prune``, ``backup`` and ``restore``."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from ..core.words import count, percent
from ..store import outbox
from ..store.keep import backup as back_up
from ..store.keep import remove, shrink, sizes, superfluous
from ..store.keep import restore as put_back
from ..store.ledger import Ledger
from ..store.ledger import home as default_home
from ..store.record import brief
from .common import LOG, AsJson, Force, Home, emit, hint, out, reader, safe, table, vacant

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def runs(
    long: Annotated[bool, typer.Option("--long", "-l", help="Dates and sizes in place of the verdict.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """The runs of the workspace, newest first: state, rounds done, preset, accuracy, and what became of clients in
    its last 200 rounds.

    A run whose process is gone is interrupted since its last round, and `fedwarden run --resume` continues it.
    """
    with reader(home) as ledger:
        rows = [brief(ledger, run) for run in ledger.runs()]
        if long:
            waiting = Counter(message.run for message in outbox.messages(ledger))
            for row in rows:
                held, kept = sizes(ledger, row["run"])
                row |= {"ledger_bytes": held, "checkpoint_bytes": kept, "pending": waiting[row["run"]]}
    if as_json:
        return emit({"runs": rows})
    more = ["began", "ledger", "checkpoints", "pending"] if long else ["preset", "accuracy", "verdict"]
    shown = table("run", "name", "state", "rounds", *more, left=(1, 2, 4) if long else (1, 2, 4, 6))
    for row in rows:
        if long:
            told = [f"{datetime.fromtimestamp(row['created']):%Y-%m-%d}", size(row["ledger_bytes"])]
            told += [size(row["checkpoint_bytes"]), str(row["pending"])]
        else:
            told = [safe(row["preset"] or "-"), percent(row["accuracy"]), safe(row["verdict"])]
        done = f"{row['rounds']}/{row['of']}" if row["of"] else str(row["rounds"] or "-")
        shown.add_row(str(row["run"]), safe(row["name"]), row["state_in_words"], done, *told)
    out.print(shown)
    if rows:
        hint(
            f"fedwarden show {rows[0]['run']}  # its clients, their states and why",
            "fedwarden dashboard  # all runs in a browser",
            folder=home,
        )
    return None


@app.command()
def prune(
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest runs stay.", show_default=False)],
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also runs that failed, were interrupted or have messages pending.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Remove all but the newest runs, with their checkpoints.

    Older runs that are not done, or whose alerts have not arrived, stay unless `--unfinished` is given; a run that a
    process writes always stays.
    """
    with reader(home) if dry_run else Ledger(home, create=False) as ledger:
        gone = superfluous(ledger, keep, unfinished)
        freed = sum(sum(sizes(ledger, run.id)) for run in gone)
        for run in () if dry_run else gone:
            remove(ledger, run.id)
        if gone and not dry_run:
            shrink(ledger)
    if as_json:
        return emit({"removed": [run.id for run in gone], "bytes": freed, "dry_run": dry_run})
    for run in gone:
        out.print(f"run {run.id}  {safe(run.name)}  {run.state}, {count(run.rounds, 'round')}")
    verb = "would be removed" if dry_run else "removed"
    return out.print(f"{count(len(gone), 'run')} {verb}, about {size(freed)}" if gone else "nothing to remove")


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write, as in workspace.tar.", show_default=False)],
    force: Force = False,
    home: Home = None,
) -> None:
    """Write the workspace to one file: the ledger as of one moment, and what a resume needs.

    Runs may go on meanwhile. `fedwarden restore` makes a workspace of it, also on another machine.
    """
    with reader(home) as ledger:
        back_up(ledger, vacant(file, force))
        LOG.info("wrote %s: %s, %s", file, count(len(ledger.runs()), "run"), size(file.stat().st_size))


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="What `fedwarden backup` wrote.", show_default=False)], home: Home = None
) -> None:
    """Make a workspace of a backup, in a folder that has none: give it with `--home`.

    `fedwarden run --resume` continues its unfinished simulations there.
    """
    put_back(file, home or default_home())
    LOG.info("restored %s to %s; fedwarden doctor checks it", file, home or default_home())


def size(held: int) -> str:
    """Bytes in a few digits.

    >>> size(900), size(1_300_000)
    ('900 B', '1.3 MB')
    """
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if held >= 10**power:
            return f"{held / 10**power:.1f} {unit}"
    return f"{held} B"
