"""``fedwarden readmit``: let a client in again and clear the evidence against it."""

from __future__ import annotations

import typer

from .common import AsJson, Home, RunNumber
from .word import By, Client, Reason, speak

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def readmit(
    run: RunNumber,
    client: Client,
    reason: Reason = "",
    by: By = "",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Take back a client's exclusion or suspension, by a watch or by word, and clear the evidence against it.

    It is asked again in the next round, and judged as a new client is: a watch may exclude it again. `fedwarden trust`
    prevents that; `fedwarden exclude` takes the word back.
    """
    speak(run, "readmit", client, reason, by, home, as_json)
