"""``fedwarden exclude``: leave a client out by word."""

from __future__ import annotations

import typer

from .common import AsJson, Home, RunNumber
from .word import By, Client, Reason, speak

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def exclude(
    run: RunNumber,
    client: Client,
    reason: Reason = "",
    by: By = "",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Exclude a client until it is readmitted: it is not asked and has weight 0, from the next round on.

    `fedwarden readmit` takes it back.
    """
    speak(run, "exclude", client, reason, by, home, as_json)
