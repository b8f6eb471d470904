"""``fedwarden observe``: judge without acting."""

from __future__ import annotations

import typer

from .common import AsJson, Home, RunNumber
from .word import By, Reason, speak

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def observe(
    run: RunNumber,
    reason: Reason = "",
    by: By = "",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Judge without acting: watches measure and flag, and leave nobody out, from the next round on.

    Clients that a watch has excluded are let in again; those excluded by word stay out. `fedwarden enforce` ends it.
    """
    speak(run, "observe", "", reason, by, home, as_json)
