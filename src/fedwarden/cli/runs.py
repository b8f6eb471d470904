"""``fedwarden runs``: the runs of the workspace."""

from __future__ import annotations

import typer

from ..core.words import percent
from ..store.overview import brief
from .common import AsJson, Home, emit, hint, out, reader, safe, table

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def runs(home: Home = None, as_json: AsJson = False) -> None:
    """The runs of the workspace, newest first: state, rounds done, preset, accuracy, and what became of clients.

    A run whose process is gone is interrupted since its last round, and `fedwarden run --resume` continues it.
    """
    with reader(home) as ledger:
        rows = [brief(ledger, run) for run in ledger.runs()]
    if as_json:
        return emit({"runs": rows})
    shown = table("run", "name", "state", "rounds", "preset", "accuracy", "verdict", left=(1, 2, 4, 6))
    for row in rows:
        done = f"{row['rounds']}/{row['of'] or '?'}"
        head = (str(row["run"]), safe(row["name"]), row["state_in_words"])
        shown.add_row(*head, done, safe(row["preset"] or "-"), percent(row["accuracy"]), safe(row["verdict"]))
    out.print(shown)
    if rows:
        hint(
            f"fedwarden show {rows[0]['run']}  # its clients, their states and why",
            "fedwarden dashboard  # all runs in a browser",
            folder=home,
        )
    return None
