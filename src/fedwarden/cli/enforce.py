"""``fedwarden enforce``: let the watches act again."""

from __future__ import annotations

import typer

from .common import AsJson, Home, RunNumber
from .word import By, Reason, speak

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def enforce(
    run: RunNumber,
    reason: Reason = "",
    by: By = "",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Let the watches act again, from the next round on: the opposite of `fedwarden observe`.

    Evidence that was gathered meanwhile counts.
    """
    speak(run, "enforce", "", reason, by, home, as_json)
